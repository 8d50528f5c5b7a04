// The site: a search that works from a file, and a button that copies each block of code.
"use strict";

const root = new URL(".", document.currentScript.src).href;
const MOST_RESULTS = 30;
const EXCERPT = 160;
let index = null;

// Called by search_index.js: [title of the page, address, heading, text] of every part of every page.
function searchIndex(parts) {
  index = parts.map(([title, url, heading, text]) => ({
    title, url, heading, text, name: `${title} ${heading}`.toLowerCase(), low: text.toLowerCase(),
  }));
}

function search(query) {
  const terms = query.toLowerCase().split(/\s+/).filter((term) => term);
  const results = [];
  for (const part of index) {
    let score = 0;
    for (const term of terms) {
      const inName = part.name.includes(term);
      const count = part.low.split(term).length - 1;
      if (!inName && !count) { score = 0; break; }
      score += (inName ? 20 : 0) + Math.min(count, 5);
    }
    if (score) results.push({ part, score });
  }
  results.sort((a, b) => b.score - a.score);
  return results.slice(0, MOST_RESULTS).map(({ part }) => part);
}

function excerpt(part, query) {
  const term = query.toLowerCase().trim().split(/\s+/)[0];
  const before = Math.max(0, part.low.indexOf(term) - EXCERPT / 3);
  const start = before ? part.text.indexOf(" ", before) + 1 : 0;
  return part.text.slice(start, start + EXCERPT).replace(/\S*$/, "...");
}

function element(name, className, text) {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

function show(list, query) {
  list.replaceChildren();
  list.hidden = query.trim().length < 2;
  if (list.hidden) return;
  const parts = search(query);
  if (!parts.length) list.append(element("p", "", `Nothing found for "${query}".`));
  for (const part of parts) {
    const link = element("a", "", "");
    link.href = root + part.url;
    const title = part.title === part.heading ? part.title : `${part.title}: ${part.heading}`;
    link.append(element("strong", "", title), element("span", "", excerpt(part, query)));
    list.append(link);
  }
}

function addSearch() {
  const place = document.querySelector(".wy-side-nav-search");
  const field = element("input", "site-search", "");
  field.type = "search";
  field.placeholder = "Search";
  field.setAttribute("aria-label", "Search the docs");
  const list = element("div", "site-results", "");
  list.hidden = true;
  list.setAttribute("role", "region");
  list.setAttribute("aria-label", "Search results");
  field.addEventListener("input", () => {
    if (index) return show(list, field.value);
    if (document.getElementById("search-index")) return;
    const script = element("script", "", "");
    script.id = "search-index";
    script.src = `${root}search_index.js`;
    script.addEventListener("load", () => show(list, field.value));
    document.head.append(script);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { field.value = ""; show(list, ""); }
    if (event.key === "Enter") list.querySelector("a")?.click();
  });
  place.append(field);
  document.body.append(list);
}

function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = element("textarea", "", "");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  return Promise.resolve();
}

function addCopyButtons() {
  for (const block of document.querySelectorAll(".codehilite")) {
    const button = element("button", "site-copy", "Copy");
    button.type = "button";
    button.addEventListener("click", async () => {
      await copy(block.querySelector("pre").textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    block.append(button);
  }
}

addEventListener("DOMContentLoaded", () => { addSearch(); addCopyButtons(); });

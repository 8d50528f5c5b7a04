// Locust's page knows our tab by name only. It leads to a page of its own.
"use strict";
if (new URLSearchParams(location.search).get("tab") === "tailgauge") location.replace("./tailgauge");
document.addEventListener("click", (event) => {
  const tab = event.target.closest('[role="tab"]');
  if (tab && tab.textContent === "Tailgauge") {
    event.preventDefault();
    event.stopPropagation();
    location.assign("./tailgauge");
  }
}, true);

"use strict";
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 760px)");
  const ink = () => {
    const of = getComputedStyle(document.documentElement);
    const read = (name) => of.getPropertyValue(name).trim();
    return { text: read("--text"), muted: read("--muted"), line: read("--line"), surface: read("--surface"), font: getComputedStyle(document.body).fontFamily };
  };
  const dressed = (layout) => {
    const c = ink();
    const out = { ...layout, font: { family: c.font, size: narrow.matches ? 11 : 12, color: c.muted } };
    out.hoverlabel = { bgcolor: c.surface, bordercolor: c.line, font: { color: c.text, family: c.font } };
    out.legend = { ...layout.legend, font: { color: c.text } };
    out.modebar = { orientation: "v", bgcolor: "rgba(0,0,0,0)", color: c.line, activecolor: c.muted };
    out.dragmode = narrow.matches ? false : "zoom"; // a finger scrolls the page, it does not select
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(key)) {
        out[key] = { ...layout[key], gridcolor: c.line, linecolor: c.line, tickcolor: c.line };
      }
    }
    out.shapes = (layout.shapes ?? []).map((shape) => dark.matches && shape.opacity ? { ...shape, opacity: 1.8 * shape.opacity } : shape);
    out.annotations = (layout.annotations ?? []).map((note) => ({ ...note, font: { color: c.text } }));
    if (narrow.matches) {
      out.margin = { ...layout.margin, l: 44, r: 6 };
      out.xaxis.title = { ...layout.xaxis.title, font: { size: 11 } };
    }
    return out;
  };
  // Plotly would offer to upload a figure to its cloud: a report goes nowhere by itself.
  const nowhere = { showSendToCloud: false, plotlyServerURL: "" };
  const settings = { ...nowhere, responsive: true, displaylogo: false, displayModeBar: narrow.matches ? false : "hover", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
  const plots = [...document.querySelectorAll(".plot")].map((box) => {
    const { data, layout } = JSON.parse(document.getElementById(box.id + "-data").textContent);
    return () => Plotly.react(box, data, dressed(layout), settings);
  });
  const draw = () => plots.forEach((plot) => plot());
  draw();
  for (const folded of document.querySelectorAll("details:has(.plot)")) { // what is folded has no width yet
    folded.addEventListener("toggle", () => folded.querySelectorAll(".plot").forEach((box) => Plotly.Plots.resize(box)));
  }
  const unfold = () => document.getElementById(location.hash.slice(1))?.closest("details")?.setAttribute("open", "");
  addEventListener("hashchange", unfold);
  unfold();
  dark.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
})();

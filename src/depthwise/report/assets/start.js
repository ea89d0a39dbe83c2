// Everything in its order. `redrawn` holds what has to be drawn anew when the page changes its width.

const redrawn = [];

function startTheme() {
  const ways = ["automatic", "light", "dark"], button = byId("theme");
  let way = 0;
  button.addEventListener("click", () => {
    way = (way + 1) % ways.length;
    button.textContent = "Theme: " + ways[way];
    if (way) document.documentElement.dataset.theme = ways[way];
    else delete document.documentElement.dataset.theme;
  });
}

startTheme();
download(byId("download-json"), "application/json", () => JSON.stringify(DATA, null, 1));
byId("download-csv").hidden = !DATA.frontiers.length;
startFrontier();
startSettings();
startEvaluations();
startDepths();
startStructure();
startLayers();
startCurves();

let lastWidth = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === lastWidth) return;
  lastWidth = innerWidth;
  redrawn.forEach((redraw) => redraw());
});

// What was logged in training.

function startCurves() {
  const curves = DATA.curves;
  if (!curves.length) return;
  byId("curves").hidden = false;
  const names = [...new Set(curves.map((curve) => curve.name))];
  const usual = ["nll", "loss", "perplexity"].find((name) => names.includes(name)) || names[0];
  const state = { name: usual, groups: new Set() }, isOne = new Set(curves.map((curve) => curve.group)).size === 1;
  const named = (group) => DATA.groups[group].name;
  // Numbers of single exits belong together: nll_at_1, nll_at_2, ... are drawn as one picture
  const families = new Map();
  for (const name of names) {
    const family = name.replace(/_at_\d+$/, " at every exit");
    families.set(family, [...(families.get(family) || []), name]);
  }
  const redraw = () => {
    const wanted = families.get(state.name) || [state.name];
    const chosen = curves.filter((curve) => wanted.includes(curve.name) && !state.groups.has(named(curve.group)));
    const lines = chosen.map((curve) => ({
      colour: seriesColour(isOne ? wanted.indexOf(curve.name) : curve.group), dash: curve.valid ? "5 4" : null, mark: 0, size: 2, width: 1.6,
      points: curve.points.map(([update, mean, deviation]) => {
        const told = (curve.valid ? "validation " : "") + curve.name.replace("_at_", " at exit ");
        const spread = deviation === undefined ? "" : " ± " + short(deviation);
        return { x: update, y: mean, ...(deviation === undefined ? {} : { low: mean - deviation, high: mean + deviation }),
          label: `${named(curve.group)}, ${told} ${short(mean)} at update ${update}`,
          lines: () => [make("b", { dir: "auto" }, named(curve.group)), tipRow(told, short(mean) + spread), tipRow("update", update.toLocaleString("en"))] };
      }),
    }));
    lineChart("curves-chart", { label: "Learning curve of " + state.name, x: "update", y: state.name, isLog: true, height: 300 }, lines);
    const notes = ["Solid lines are training, dashed ones validation."];
    if (chosen.some((curve) => curve.points[0].length > 2)) notes.push("Bands are one standard deviation over seeds.");
    const exits = isOne && wanted.length > 1 ? wanted.map((name, i) => make("span", { class: "key" }, [icon(0, seriesColour(i)), "exit " + name.match(/\d+$/)[0]])) : [];
    byId("curves-note").replaceChildren(notes.join(" ") + " ", ...exits);
  };
  const controls = [select("Number", [...families.keys()].sort((a, b) => (b === usual) - (a === usual)).map((name) => [name, name]), (value) => { state.name = value; redraw(); })];
  if (!isOne) controls.push(chips("Runs", DATA.groups.map((group) => group.name), (i) => icon(0, seriesColour(i)), (off) => { state.groups = off; redraw(); }));
  byId("curves-controls").replaceChildren(...controls);
  redrawn.push(redraw);
  redraw();
}

const KINDS = { gates: "chance that a layer is used", gradients: "norm of a layer's gradient", samples: "last sample of a gate" };

function startLayers() {
  const maps = DATA.heat_maps;
  if (!maps.length) return;
  byId("layers").hidden = false;
  const pictures = maps.map((map, i) => ({ maps: [i], name: [DATA.runs[map.run].name, map.side, KINDS[map.kind], map.language].filter(Boolean).join(", ") }));
  const families = new Map();
  maps.forEach((map, i) => {
    if (map.kind !== "gates") return;
    const key = [map.run, map.side].join(" ");
    families.set(key, [...(families.get(key) || []), i]);
  });
  for (const of of families.values()) {
    if (of.length > 1) pictures.push({ maps: of, name: DATA.runs[maps[of[0]].run].name + ", " + maps[of[0]].side + ", all languages at the last update" });
  }
  let chosen = 0;
  const redraw = () => {
    const picture = pictures[chosen], map = maps[picture.maps[0]], isLog = map.kind === "gradients";
    const rows = picture.maps.length === 1
      ? map.rows.map((values, layer) => ({ name: String(layer), values }))
      : map.rows.map((_, layer) => ({ name: String(layer), values: picture.maps.map((i) => maps[i].rows[layer][maps[i].rows[layer].length - 1]) }));
    const columns = picture.maps.length === 1 ? map.updates.map((update) => update.toLocaleString("en")) : picture.maps.map((i) => maps[i].language);
    const known = rows.flatMap((row) => row.values).filter((value) => value !== null && (!isLog || value > 0));
    const low = isLog ? Math.log(Math.min(...known)) : 0, high = isLog ? Math.log(Math.max(...known)) : 1;
    const colour = (value) => between(GATES, isLog ? (value > 0 ? (Math.log(value) - low) / (high - low || 1) : 0) : value);
    heatMap("layers-chart", { label: picture.name, x: picture.maps.length === 1 ? "update" : "language", colour,
      tell: (row, column, value) => [`layer ${row.name}`, (picture.maps.length === 1 ? "update " : "") + column, KINDS[map.kind] + " " + short(value)] }, rows, columns);
    byId("layers-note").textContent = isLog
      ? `From ${short(Math.exp(low))} (light) to ${short(Math.exp(high))} (dark), on a logarithmic scale. The first layer is on top.`
      : "From 0 (light) to 1 (dark). The first layer is on top.";
  };
  byId("layers-controls").replaceChildren(select("Picture", pictures.map((picture, i) => [i, picture.name]), (value) => { chosen = Number(value); redraw(); }));
  redrawn.push(redraw);
  redraw();
}

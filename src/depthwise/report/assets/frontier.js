// Quality against what it costs.

const COSTS = {
  depth: { name: "mean depth (blocks per token)", of: (p) => p.depth, deviation: "depth_deviation", show: (v) => fixed(v, 2) + " blocks" },
  flops: { name: "operations per input (MFLOPs)", of: (p) => (p.flops === null ? null : p.flops / 1e6), show: (v) => operations(v * 1e6) },
  seconds: { name: "measured time per input (ms)", of: (p) => (p.seconds === null ? null : 1000 * p.seconds), show: (v) => duration(v / 1000) },
};

function kindOf(frontier) { return [frontier.task, frontier.split, frontier.metric].join(" · "); }
function fullOf(frontier) { return frontier.points.find((point) => point.full); }

function pointLines(frontier, point) {
  const full = fullOf(frontier), of = (name) => (full && full[name] && point[name] !== null ? point[name] / full[name] : null);
  const spread = (name, digits) => (point[name + "_deviation"] === undefined ? "" : " ± " + point[name + "_deviation"].toFixed(digits));
  const marks = [];
  if (point.full) marks.push("the full model");
  if (point.cheapest) marks.push("cheapest at full quality");
  for (const each of point.calibrated || []) marks.push("calibrated as " + each.name + (each.met ? "" : ", goal missed"));
  return [
    make("b", { dir: "auto" }, point.name),
    frontier.name + (marks.length ? " (" + marks.join("; ") + ")" : ""),
    tipRow(frontier.metric, fixed(point.quality, 2) + spread("quality", 2)),
    tipRow("mean depth", fixed(point.depth, 2) + spread("depth", 2) + " of " + frontier.num_layers + ", " + share(of("depth"))),
    tipRow("operations per input", operations(point.flops) + ", " + share(of("flops"))),
    tipRow("time per input", duration(point.seconds) + ", " + share(of("seconds"))),
  ];
}

function startFrontier() {
  const frontiers = DATA.frontiers;
  if (!frontiers.length) return;
  byId("frontier").hidden = false;
  const kinds = [...new Set(frontiers.map(kindOf))];
  const policies = [...new Set(frontiers.flatMap((f) => f.points.map((p) => p.line)))];
  const names = frontiers.map((f) => f.name), isOne = frontiers.length === 1;
  const state = { kind: kinds[0], cost: "depth", lines: new Set(), runs: new Set() };
  const colourOf = (f, line) => (isOne ? (line === "fixed" ? "var(--text)" : seriesColour(policies.indexOf(line))) : seriesColour(frontiers.indexOf(f)));

  const redraw = () => {
    const cost = COSTS[state.cost], chosen = frontiers.filter((f) => kindOf(f) === state.kind && !state.runs.has(f.name));
    const lines = [];
    for (const f of chosen) {
      for (const line of policies) {
        if (state.lines.has(line)) continue;
        const points = f.points.filter((p) => p.line === line && p.quality !== null && cost.of(p) !== null).map((p) => {
          const banded = p.quality_deviation === undefined ? {} : { low: p.quality - p.quality_deviation, high: p.quality + p.quality_deviation };
          const label = `${f.name}, ${p.name}: ${f.metric} ${fixed(p.quality, 2)} at ${cost.show(cost.of(p))}`;
          const classes = [p.full && "full", p.cheapest && "cheapest", line === "calibrated" && "calibrated"].filter(Boolean).join(" ");
          return { x: cost.of(p), y: p.quality, ...banded, label, classes, lines: () => pointLines(f, p) };
        });
        const isSeparate = line === "separate" || line === "calibrated";
        lines.push({ name: line, colour: colourOf(f, line), mark: policies.indexOf(line), points,
          width: line === "calibrated" ? 0 : line === "fixed" ? 2.5 : 1.4,
          dash: isSeparate ? "2 4" : Math.floor(frontiers.indexOf(f) / 10) ? "7 3" : null });
      }
    }
    const first = frontiers.find((f) => kindOf(f) === state.kind);
    const full = chosen.length === 1 && fullOf(chosen[0]);
    lineChart("frontier-chart", {
      label: "Frontier: " + first.metric + " against " + cost.name, x: cost.name,
      y: first.metric + (first.higher_is_better ? "" : " (lower is better)"), level: full ? full.quality : null,
    }, lines);
    const digests = new Set(chosen.map((f) => f.examples_digest)), machines = [...new Set(chosen.map((f) => f.hardware))];
    const notes = [];
    if (digests.size > 1) notes.push("These runs were swept over different examples: compare with care.");
    if (state.cost === "seconds") notes.push("Measured on " + machines.join("; ") + "." + (machines.length > 1 ? " Times of different machines do not compare." : ""));
    if (chosen.some((f) => f.runs.length > 1)) notes.push("Bands are one standard deviation over seeds to either side of the mean.");
    if (!first.higher_is_better) notes.push("Less " + first.metric + " is better: here, down is better.");
    byId("frontier-note").textContent = notes.join(" ");
  };

  const controls = [select("Cost", [["depth", "mean depth"], ["flops", "operations"], ["seconds", "measured time"]], (value) => { state.cost = value; redraw(); })];
  if (kinds.length > 1) controls.unshift(select("Data", kinds.map((kind) => [kind, kind]), (value) => { state.kind = value; redraw(); }));
  if (!isOne) controls.push(chips("Runs", names, (i) => icon(0, seriesColour(i)), (off) => { state.runs = off; redraw(); }));
  if (policies.length > 1) {
    const colours = (i) => (isOne ? colourOf(frontiers[0], policies[i]) : "var(--text)");
    controls.push(chips("Policies", policies, (i) => icon(i, colours(i)), (off) => { state.lines = off; redraw(); }));
  }
  byId("frontier-controls").replaceChildren(...controls);
  redrawn.push(redraw);
  redraw();
}

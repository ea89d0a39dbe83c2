// Depth that a model expected to need, beside the layers that an input ran.

const ACROSS = { expected: "expected depth (layers)", length: "length (tokens)" };

function startStructure() {
  const runs = DATA.runs.filter((run) => run.has_structure);
  if (!runs.length) return;
  byId("structure").hidden = false;
  const state = { run: 0, at: 0, across: "expected" };
  const at = make("select", { onchange: () => { state.at = Number(at.value); redraw(); } });
  const csv = make("a", { class: "button", download: "predicted-depths.csv", href: "#structure" }, "These depths as CSV");
  download(csv, "text/csv", () => structureCsv(runs));
  const redraw = () => {
    const run = runs[state.run], found = run.structure;
    csv.hidden = !runs.some((each) => each.structure);
    if (!found) {
      at.replaceChildren(make("option", { value: 0 }, "not known"));
      byId("structure-chart").replaceChildren(make("p", {}, "Nothing is known of what this model expected. Run some inputs: depthwise report " + run.folder + " --samples 100"));
      byId("structure-note").textContent = "";
      return;
    }
    const settings = [run.depths.setting, ...found.thresholds.map((threshold) => "γ = " + threshold)];
    at.replaceChildren(...settings.map((name, i) => make("option", { value: i, selected: i === state.at }, name)));
    const points = found.sequences.map((sequence) => {
      const [length, expected] = sequence, ran = sequence[2 + state.at];
      return { length, expected, ran, x: state.across === "length" ? length : expected, y: ran,
        label: `${run.name}, ${length} tokens: expected ${expected.toFixed(2)}, ran ${ran} of ${found.num_layers} layers`,
        lines: () => [make("b", {}, `${length} tokens`), tipRow("expected depth", expected.toFixed(2)), tipRow("executed depth", `${ran} of ${found.num_layers}`)] };
    });
    lineChart("structure-chart", { label: `Executed depth against ${ACROSS[state.across]}, ${settings[state.at]}`, x: ACROSS[state.across],
      y: "executed depth (layers)", diagonal: state.across === "expected", height: 320 }, [{ colour: seriesColour(run.group), mark: 0, width: 0, size: 3.5, points }]);
    byId("structure-note").textContent = structureNote(run, points);
  };
  const choose = (label, options, name) => select(label, options, (value) => { state[name] = name === "across" ? value : Number(value); state.at = name === "run" ? 0 : state.at; redraw(); });
  const controls = [make("label", {}, ["Stops by", at]), choose("Against", Object.entries(ACROSS), "across"), csv];
  if (runs.length > 1) controls.unshift(choose("Run", runs.map((run, i) => [i, run.name]), "run"));
  byId("structure-controls").replaceChildren(...controls);
  redrawn.push(redraw);
  redraw();
}

function structureNote(run, points) {
  const of = (name) => points.map((point) => point[name]), told = (name) => `${average(of(name)).toFixed(2)} ± ${deviation(of(name)).toFixed(2)}`;
  const alike = (one, other) => (deviation(of(one)) && deviation(of(other)) ? correlation(of(one), of(other)).toFixed(2) : "none, as one of them does not vary");
  const notes = [`${points.length} ${run.depths.split} inputs: expected depth ${told("expected")}, executed depth ${told("ran")} (mean and deviation).`,
    `Correlation with length: expected ${alike("expected", "length")}, executed ${alike("ran", "length")}.`];
  if (deviation(of("expected")) < 0.005) notes.push("All inputs are the same to this predictor.");
  notes.push("On the dashed line executed depth is what was expected.");
  return notes.join(" ");
}

function average(values) { return values.reduce((a, b) => a + b, 0) / values.length; }

function deviation(values) {
  const mean = average(values);
  return Math.sqrt(average(values.map((value) => (value - mean) ** 2)));
}

function correlation(one, other) {
  const a = average(one), b = average(other);
  return average(one.map((value, i) => (value - a) * (other[i] - b))) / (deviation(one) * deviation(other));
}

function structureCsv(runs) {
  const lines = [["run", "split", "length", "expected_depth", "executed_by", "executed_depth"]];
  for (const run of runs) {
    for (const [length, expected, ...depths] of run.structure ? run.structure.sequences : []) {
      depths.forEach((depth, i) => lines.push([run.name, run.depths.split, length, expected, i ? "threshold " + run.structure.thresholds[i - 1] : run.depths.setting, depth]));
    }
  }
  return lines.map((line) => line.map(csvCell).join(",") + "\r\n").join("");
}

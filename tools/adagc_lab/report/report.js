// The report of the laboratory, made of the library's parts of a page.
"use strict";
const heads = section => section.methods.map(
  ([method, color]) => [method, {style: `color: var(${color})`}]);
const cells = row => row.cells.map(([text, isBest]) =>
  [text, isBest && row.is_headline ? {class: "best"} : {}]);
const wide = text => [text, {class: "text"}];

function facts(parent, title, values) {
  if (!Object.keys(values).length) return;
  table(fold(parent, title), ["", wide("")],
    Object.entries(values));
}

function summary() {
  const compared = data.sections.filter(s => s.methods.length > 1);
  if (!compared.length) return;
  const box = add(main, "div", null, {class: "summary"});
  for (const section of compared) {
    add(box, "h3", section.title);
    table(box, ["", wide("best"), ...heads(section)],
      section.measures.filter(row => row.is_headline).map(
        row => [row.title, row.winner, ...cells(row)]));
    if (section.num_seeds < 3)
      soft(box, "Fewer than 3 seeds: an illustration, not a result.");
  }
  soft(box, "The best mean over seeds is marked; the second column says in " +
    "how many seeds it beats every other method. –: nothing to compare, such " +
    "as spikes where no step could be judged.");
}

function measures(section) {
  add(main, "h3", "All measures");
  const rows = [];
  let group = null;
  for (const row of section.measures) {
    if (row.group !== group) rows.push(group = row.group);
    rows.push([row.label, ...cells(row)]);
  }
  table(main, ["", ...heads(section)], rows);
  soft(main, (section.num_seeds > 1 ? `${section.num_seeds} seeds: counts ` +
    "are listed seed by seed, other numbers are mean ± sample standard " +
    "deviation, or median and range." : "One seed.") +
    " –: no value, such as spikes where no step was judged.");
  const list = add(fold(main, "What each row means"), "dl");
  const labels = new Map(section.measures.map(r => [r.label, r.meaning]));
  for (const [label, meaning] of labels) {
    add(list, "dt", label);
    add(list, "dd", meaning);
  }
}

function tensors(section) {
  if (section.norms.length) {
    add(main, "h3", `Around ${section.reason}`);
    soft(main, `${section.seed}. Loss, and gradient norm of the tensors that ` +
      `were hit (${section.hit}), before and after the clip. AdaGC clips a ` +
      "tensor where its norm is above the dashed line. The optimizer gets " +
      "the colored line.");
    charts(main, section.norms.flat(),
      {columns: section.norms[0].length, height: 190});
  }
  const maps = Object.entries(section.heat);
  if (maps.length) {
    add(main, "h3", "Scale h of every tensor at every step");
    soft(main, `${section.seed}. h is what the clip multiplies a tensor's ` +
      "gradient by: 1 leaves it alone, 0.1 lets a tenth through. Every " +
      "column is the lowest value of a few steps. Click a layer for its " +
      "tensors.");
  }
  for (const [method, map] of maps) {
    add(main, "h4", method);
    heat(main, map, ["h: 1 (not clipped)", "≤ 0.01"]);
  }
  if (section.moments.length) {
    add(main, "h3", "What the optimizer remembers");
    soft(main, "Norms of the optimizer's moments of the same tensors at the " +
      "same steps: what stays of the event, and for how long.");
    charts(main, section.moments, {columns: 2, height: 190});
  }
  if (section.dynamics.length) {
    add(main, "h3", "The optimizer's dynamics");
    soft(main, "Norms of one tensor in the first seed.");
    charts(main, section.dynamics, {columns: 2, height: 190});
  }
}

function howRun(section) {
  add(main, "h3", "How it was run");
  const different = Object.entries(section.different);
  if (different.length) {
    add(main, "p", "The methods differ in these options only:");
    table(main, ["option", ...heads(section)],
      different.map(([key, values]) => [key, ...values]));
  }
  const count = Object.keys(section.common).length;
  facts(main, `Options that all runs share (${count})`, section.common);
  facts(main, "Software, machine and data", section.facts);
  const raw = fold(main, "Raw files");
  add(raw, "p", "Relative to this page. Each folder holds run.json (how the " +
    "run was made), metrics.jsonl (one line per step) and tensors.f32 (norms " +
    "of every tensor at every step).");
  const list = add(raw, "ul");
  for (const path of section.paths) add(add(list, "li"), "code", path);
}

function show(section) {
  add(main, "h2", section.title, {id: section.anchor});
  add(main, "p", section.description);
  soft(main, section.extent);
  const count = section.methods.length;
  if (section.num_hidden)
    soft(main, `The figures show the first ${count - section.num_hidden} of ` +
      `the ${count} methods, the tables all.`);
  charts(main, section.curves);
  soft(main, "Drag to zoom, double-click to see all steps. " +
    (section.num_seeds > 1 ? "Lines are means over the seeds, bands reach " +
    "from the least to the largest seed; a long noisy mean is smoothed. " :
    "A long noisy curve is drawn pale, with the mean of the steps just " +
    "before on top. ") + `Circles are spikes (10 σ, window ` +
    `${number(section.window, 6)}). ` + (section.has_faults ? "Shaded steps " +
    "are injected faults; the loss of a corrupted batch itself is left out." :
    ""));
  measures(section);
  tensors(section);
  howRun(section);
}

function notes() {
  const any = name => data.sections.some(section => section[name]);
  const skipped = [...new Set(data.sections.map(s => s.skip_steps))].sort(
    (a, b) => a - b).map(steps => number(steps, 6)).join(" or ");
  const texts = [
    `The first ${skipped} steps, the initial descent, are not judged: its ` +
      "steep fall would widen the spread of the first windows to several nats.",
    "The step of a spike is chaotic: the smallest change moves it. Fewer " +
      "than 3 seeds or 2,500 steps show nothing; a verdict of " +
      "tools/reproduce.py needs 8 paired seeds.",
    "The spike score compares a loss with the spread of the window before " +
      "it. On a noisy loss ten standard deviations can be more than a nat: " +
      "damage below that scores 0.",
    "One event widens the spread for a whole window and can hide the next " +
      "one, and one event can count as many neighboring spikes. Therefore " +
      "events and the spike mass are given, too.",
    "Small models on a CPU stand in for pretraining: they show how a clip " +
      "reacts to an outlier, not what a large run gains. Their gradient norm " +
      "is closer to the absolute threshold than in large runs, where the " +
      "threshold leaves more headroom.",
    "Clip time is that of one machine and this model size, where fixed costs " +
      "per operation dominate.",
    any("has_faults") && "The loss of a corrupted batch itself is high for " +
      "any model. It is left out of all measures; what counts is the damage " +
      "afterwards.",
    any("has_clean_runs") && "Paired excess is the difference to a run of " +
      "the same method with the same seed and batches but no faults. It " +
      "shows lasting damage that the spike score misses.",
    data.sections.some(s => s.num_seeds < 3) && "This report has fewer than " +
      "3 seeds in at least one experiment: it illustrates and decides nothing.",
  ];
  add(main, "h2", "How to read the numbers", {id: "notes"});
  const list = add(main, "ul");
  for (const text of texts.filter(Boolean)) add(list, "li", text);
}

add(main, "h1", data.title);
summary();
if (data.sections.length > 1) {
  const links = add(main, "nav");
  for (const {anchor, title} of data.sections)
    add(links, "a", title, {href: `#${anchor}`});
  add(links, "a", "How to read the numbers", {href: "#notes"});
}
data.sections.forEach(show);
notes();

"use strict";
const CURVES = [
  {label: "Loss", lines: {loss: ["loss", "--blue"]}},
  {label: "Gradient norm", log: true, lines: {
    global_grad_norm: ["before the clip", "--blue"],
    clipped_grad_norm: ["after it", "--orange"]}},
  {label: "Clip", range: [0, 1], lines: {
    clipped_fraction: ["share of tensors clipped", "--orange"],
    h_median: ["median h", "--blue"]}},
  {range: [0, 1], lines: {
    shadow_clipped_fraction: ["share of tensors clipped", "--orange"],
    shadow_h_median: ["median h", "--blue"]}},
  {label: "Learning rate", lines: {
    learning_rate: ["learning rate", "--blue"]}},
];
const COLORS = ["--blue", "--orange", "--green", "--pink", "--brown", "--sky"];
const span = e => e.last > e.first ? `${e.first} to ${e.last}` :
  String(e.first);
const gutter = () => innerWidth < 640 ? 78 : 150;

// A diverged loss would hide all others on a plain axis.
function isWide(series) {
  const known = series.flatMap(({low, high}) => [...low, ...high])
    .filter(v => v !== null).sort((a, b) => a - b);
  return known.length > 0 && known[0] > 0 &&
    known[known.length - 1] > 5 * known[known.length >> 1];
}

function curves(page) {
  return CURVES.map(({label, log, range, lines}) => {
    const names = Object.keys(lines).filter(name => page.curves[name]);
    const wide = log || !range && isWide(names.map(n => page.curves[n]));
    label = label || `Under ${page.recorded}, which follows the norms`;
    return {
      label: label + (wide ? " (logarithmic)" : ""), log: wide, range,
      steps: page.curves.step, spans: page.curves.marks, gutter,
      extent: [page.first_step, page.last_step],
      lines: names.map(name => {
        const [label, color] = lines[name], {low, high} = page.curves[name];
        return {label, color, values: high, raw: low, low, high};
      }),
    };
  }).filter(chart => chart.lines.length);
}

// The curves of several runs over one another: the highest of each bin.
function overlay(pages) {
  const steps = [...new Set(pages.flatMap(p => p.curves.step))]
    .sort((a, b) => a - b);
  const chart = (name, label) => {
    const have = pages.filter(p => p.curves[name]);
    return {
      label, steps, log: isWide(have.map(p => p.curves[name])), gutter,
      extent: [steps[0], Math.max(...pages.map(p => p.last_step))],
      lines: have.map((page, i) => {
        const at = new Map(page.curves.step.map((step, j) =>
          [step, page.curves[name].high[j]]));
        return {label: page.name, color: COLORS[i % COLORS.length],
          values: steps.map(s => at.get(s))};
      }),
    };
  };
  const list = [chart("loss", "Loss"),
    chart("global_grad_norm", "Gradient norm before the clip"),
    chart("clipped_grad_norm", "Gradient norm after it")];
  charts(main, list.filter(c => c.lines.length), 200);
}

function events(page) {
  add(main, "h2", "Events");
  table(main, ["steps", "kind", "tensors", "highest loss",
    "mean before", "highest norm", "norm the clip left", "AdaGC would have",
    "back from"],
    page.events.map(e => [span(e), e.kind, e.num_guilty ?? "–",
      number(e.loss),
      e.before ? number(e.before.mean) : "–", number(e.norm),
      e.left === null && e.skipped.length ? "skipped" : number(e.left),
      number(e.shadow_left), count(e.back)]), {marked: page.worst, kind: "stack"});
}

function guilty(event, clip) {
  if (event.kind === "loss nan" && !event.guilty.length) return;  // all have
  add(main, "h2", `Tensors that left their usual norm first, ${event.last >
    event.first ? "steps" : "step"} ${span(event)}`);
  if (event.guilty.length)
    table(main, ["tensor", "from step", "norm", "usual", "times usual",
      `h of ${clip}`],
      event.guilty.map(g => [g.key, g.onset, number(g.norm),
        number(g.usual), g.ratio === null ? "Inf or NaN" : number(g.ratio),
        number(g.h)]), {kind: "stack"});
  else add(main, "p", event.is_known ? "No tensor left its usual norm." :
    "The record does not hold what was usual for the tensors here.");
  if (event.num_guilty > event.guilty.length)
    soft(main, `The first ${event.guilty.length} of ${event.num_guilty}. ` +
      "Counted are norms above 1.5 times the usual one, and 8 deviations.");
}

function whatIf(found) {
  add(main, "h2", "What if");
  table(main, ["setting", "before: clipped", "median h",
    "event: median h", "lowest h"], found.rows.map(r => [r.case,
    percent(r.calm_clipped), number(r.calm_h_median),
    number(r.event_h_median), number(r.event_h_min)]), {kind: "stack"});
  soft(main, found.note);
}

function show(page) {
  add(main, "h1", page.name);
  const box = add(main, "div", null, {class:
    "summary" + (["calm", "short", "step"].includes(page.verdict.kind) ?
    "" : " alarm")});
  page.verdict.lines.forEach(line => add(box, "p", line));
  if (page.actions.length) add(main, "h2", "Now");
  for (const action of page.actions) {
    add(main, "p", action.text);
    if (action.command) add(main, "pre", action.command);
  }
  page.notes.forEach(note => soft(main, `Note: ${note}.`));
  const [steps, first, last] = [page.num_steps, page.first_step,
    page.last_step].map(count);
  soft(main, `${steps} steps (${first} to ${last}), ${page.num_tensors} tensors.` +
    [page.model, page.optimizer].filter(Boolean).map(x => ` ${x}.`).join(""));
  soft(main, `Clip: ${page.clip}.`);
  if (page.shadow) soft(main, `Shadow: ${page.shadow}.`);
  if (page.num_steps) {
    charts(main, curves(page), 150);
    soft(main, "Drag to zoom, double-click to see all steps. Of many steps " +
      "each point is the lowest and the highest value of some. Violet: events.");
  }
  if (page.heat.groups.length) {
    add(main, "h2", "Norm over usual norm, by layer");
    heat(main, page.heat, ["1", "≥ 19; violet: Inf or NaN. Click a layer " +
      "for its tensors. The steps are those of the whole curves."], gutter());
  }
  const event = page.worst === null ? null : page.events[page.worst];
  if (page.events.length > 1) events(page);
  if (event) guilty(event, page.recorded);
  if (page.what_if) whatIf(page.what_if);
}

if (data.length > 1) {
  add(main, "h1", "Runs");
  table(main, ["run", "steps", ["clip", {class: "text"}], "verdict"], data.map(p =>
    [p.name, p.num_steps, [p.clip, {class: "text"}], p.verdict.kind]),
    {kind: "stack"});
  overlay(data.filter(p => p.num_steps));
}
data.forEach(show);

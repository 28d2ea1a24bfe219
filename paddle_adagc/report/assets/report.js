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
const span = e => e.end > e.start ? `${e.start} to ${e.end}` : String(e.start);

function curves(page) {
  return CURVES.map(({label, log, range, lines}) => ({
    label: label || `Under ${page.recorded}`, log, range,
    steps: page.curves.step, spans: page.curves.marks,
    lines: Object.entries(lines).filter(([name]) => page.curves[name]).map(
      ([name, [label, color]]) => {
        const {low, high} = page.curves[name];
        return {label, color, values: high, raw: low, low, high};
      }),
  })).filter(chart => chart.lines.length);
}

function events(page) {
  add(main, "h2", "Events");
  table(main, ["steps", "cause", "loss", "usual", "norm", "after the clip",
    "usual again after"], page.events.map(e => [span(e), e.kind,
    number(e.loss), number(e.usual_loss), number(e.norm),
    e.skipped.length ? "not made" : number(e.clipped_norm),
    number(e.recovered_after)]), {marked: page.worst, kind: "stack"});
}

function guilty(event, clip) {
  add(main, "h2", `Tensors that left their usual norm first, ${event.end >
    event.start ? "steps" : "step"} ${span(event)}`);
  if (event.guilty.length)
    table(main, ["tensor", ["layer", {class: "layer"}], "onset", "norm",
      "usual", "times usual", "threshold", `h of ${clip}`],
      event.guilty.map(g => [g.key, g.layer, g.onset, number(g.norm),
        number(g.usual), g.ratio === null ? "Inf or NaN" : number(g.ratio),
        number(g.threshold), number(g.h)]), {kind: "stack"});
  else add(main, "p", event.kind === "batch" ? "No tensor stands out." :
    "No tensor left its usual norm.");
  if (event.num_guilty > event.guilty.length)
    soft(main, `${event.num_guilty} tensors in all.`);
}

function whatIf(found) {
  add(main, "h2", "What if");
  if (found.note) soft(main, found.note);
  else replayed(found);
  if (found.early)
    soft(main, "AdaGC as in the paper, on the norms of steps " +
      `${found.early.first_step} to ${found.early.last_step}, would have ` +
      `clipped ${percent(found.early.clipped)} of the tensors.`);
}

function replayed(found) {
  soft(main, `A replay of ${found.num_rows} recorded steps' ` +
    "norms: an open loop, since under another clip the weights would have " +
    "been others." + (found.is_thinned ? " Only one step in some is " +
    "left of the calm ones, so that gamma follows more slowly here." : ""));
  table(main, ["setting", "calm steps: clipped", "median h",
    "event: median h", "lowest h"], found.rows.map(r => [r.case,
    percent(r.calm_clipped), number(r.calm_h_median),
    number(r.event_h_median), number(r.event_h_min)]), {kind: "stack"});
  if (found.most_clipped.length)
    soft(main, `In calm steps ${found.rows[0].case} clips most: ` +
      found.most_clipped.map(row => `${row.tensors} (${row.number}) ` +
        percent(row.clipped)).join(", ") + ".");
}

function settings(s) {
  add(main, "h2", "Settings");
  add(main, "p", `${s.optimizer}` + (s.beta2 === undefined ? "" :
    `, beta2 ${s.beta2}: its memory is ${number(s.beta2_memory)} steps`) +
    (s.num_stale === undefined ? "" : `. gamma is more than 4 times off the ` +
    `usual norm in ${s.num_stale} tensors` + (s.num_stale ? ": " +
    s.stale.join(", ") : "")) + (s.small_second_moment === undefined ? "" :
    `. ${percent(s.small_second_moment)} of the elements have sqrt(v) below ` +
    `10 epsilon (${s.epsilon})`) + ".");
}

function show(page) {
  add(main, "h1", page.name);
  add(main, "p", page.verdict.text, {class:
    "summary" + (page.verdict.kind === "calm" ? "" : " alarm")});
  page.notes.forEach(note => add(main, "p", note));
  soft(main, `${page.num_steps} steps (${page.first_step} to ` +
    `${page.last_step}), ${page.num_tensors} tensors. Clip: ${page.clip}.` +
    (page.shadow ? ` Beside it: ${page.shadow}.` : ""));
  if (page.num_steps) {
    charts(main, curves(page), {height: 150});
    soft(main, "Drag to zoom, double-click to see all steps. Of many steps " +
      "each point is the lowest and the highest value of some. Violet: events.");
  }
  const event = page.worst === null ? null : page.events[page.worst];
  if (page.events.length > 1) events(page);
  if (event) guilty(event, page.recorded);
  if (page.heat.groups.length) {
    add(main, "h2", "Norm over usual norm, by layer");
    heat(main, page.heat, ["1", "≥ 22; violet: Inf or NaN. Click a layer " +
      "for its tensors."]);
  }
  if (event && event.samples.length) {
    add(main, "h2", "The batch");
    table(main, ["step", "samples"], event.samples.map(
      ([step, [first, stop]]) => [step, `${first} to ${stop - 1}`]));
  }
  if (page.what_if) whatIf(page.what_if);
  settings(page.settings);
  if (page.actions.length) add(main, "h2", "Now");
  for (const action of page.actions) {
    add(main, "p", action.title);
    add(main, "pre", action.text);
  }
}

if (data.length > 1) {
  add(main, "h1", "Runs");
  table(main, ["run", "steps", "verdict"], data.map(
    p => [p.name, p.num_steps, p.verdict.kind]), {kind: "stack"});
}
data.forEach(show);

// Parts of a page: text, tables, charts that zoom together, heat maps.
// uPlot 1.6.32 (MIT, no dependencies, 51 KB) lies beside this file as
// released; plotly's basic bundle would put 1.2 MB into every page.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const main = document.querySelector("main");
const redraws = [];

function add(parent, tag, text, attributes) {
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.textContent = text;
  for (const [name, value] of Object.entries(attributes || {}))
    node.setAttribute(name, value);
  parent.appendChild(node);
  return node;
}
const soft = (parent, text) => add(parent, "p", text, {class: "soft"});

const number = (x, digits = 3) => x === null || x === undefined ? "–" :
  x !== 0 && (Math.abs(x) < 1e-3 || Math.abs(x) >= 1e6) ?
  Number(x.toPrecision(digits)).toExponential() :
  Number(x.toPrecision(digits)).toLocaleString("en",
    {maximumFractionDigits: 6});
const count = x => x === null || x === undefined ? "–" :
  x.toLocaleString("en");
const percent = x => x === null ? "–" : Math.round(100 * x) + "%";

// A head or a cell is a text, or [text, attributes]; a column's cells have the
// class of its head. With the kind "stack" a narrow page shows each row as a
// block, its cells below each other.
function table(parent, heads, rows, {marked, kind = ""} = {}) {
  const box = add(parent, "div", null, {class: "scroll"});
  const node = add(box, "table", null, {class: kind});
  const parts = cell => Array.isArray(cell) ? cell : [cell, {}];
  const head = add(add(node, "thead"), "tr");
  heads.forEach(cell => add(head, "th", ...parts(cell)));
  const body = add(node, "tbody");
  rows.forEach((cells, place) => {
    const row = add(body, "tr", null, place === marked ?
      {class: "worst"} : {});
    cells.forEach((cell, i) => {
      const [text, own] = parts(cell), column = parts(heads[i])[1].class;
      const kind = {class: [column, own.class].filter(Boolean).join(" ")};
      add(row, i ? "td" : "th", text,
        {...own, ...kind, "data-head": parts(heads[i])[0]});
    });
  });
}

const css = name =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A chart: label, steps, lines, and perhaps log, range [low, high], spans of
// steps [first, last] to shade. A line: label, color (--blue), values, and
// perhaps low and high (a band), raw (drawn pale).
function charts(parent, list, height) {
  const box = add(parent, "div", null, {class: "charts"});
  const group = `charts-${document.querySelectorAll(".charts").length}`;
  for (const chart of list) {
    const cell = add(box, "div");
    add(cell, "h4", chart.label);
    const node = add(cell, "div", null, {role: "group",
      "aria-label": chart.label});
    drawChart(node, chart, group, height);
  }
}
function drawChart(node, chart, group, height) {
  const {columns, series, bands, companions} = columnsOf(chart);
  const axis = {
    stroke: () => css("--soft"),
    grid: {stroke: () => css("--line"), width: 1},
    ticks: {stroke: () => css("--line"), width: 1},
    values: (_, ticks) => ticks.map(t => t === null ? "" : number(t, 5)),
  };
  const size = () => ({width: Math.max(node.clientWidth, 200), height});
  const y = {distr: chart.log ? 3 : 1}, x = {time: false};
  if (chart.range) y.range = chart.range;
  else if (chart.log) y.range = (_, low, high) => low === null ? [1, 10] :
    low === high ? [low / 2, high * 2] : [low / 1.1, high * 1.1];
  if (chart.extent) x.range = (_, low, high) => low === null ?
    chart.extent : low === plotted[0] && high === plotted[1] ?
    [chart.extent[0], chart.extent[1] + 1] : [low, high];
  const plotted = [columns[0][0], columns[0][columns[0].length - 1]];
  const plot = new uPlot({
    ...size(), series, bands,
    padding: chart.gutter ? [8, 28, 0, 0] : undefined,
    scales: {x, y},
    axes: [{...axis, label: "step", labelSize: 18, size: 32, space: 80,
            values: (_, steps) => steps.map(s => s === null ? "" : count(s))},
           {...axis, size: chart.gutter || 60,
            splits: chart.log ? logSplits : undefined,
            filter: chart.log ? (_, splits) => splits : undefined}],
    cursor: {drag: {x: true, y: false},
             sync: {key: group, setSeries: false}},
    hooks: {
      drawAxes: [plot => shade(plot, chart.spans || [])],
      setSeries: [(plot, index, {show}) => {
        if (show === undefined || show === null) return;
        for (const other of companions[index] || [])
          plot.setSeries(other, {show}, false);
      }],
    },
  }, columns, node);
  new ResizeObserver(() => plot.setSize(size())).observe(node);
  redraws.push(() => plot.redraw(false, true));
}
// Few lines, all of them labelled: powers of ten; within two of them also
// their multiples by 2 and 5, or even steps.
function logSplits(plot, axis, low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.log10(high);
  const decades = last - Math.log10(low);
  if (decades >= .7 && decades < 2)
    return [first, first + 1, first + 2].flatMap(power =>
      [1, 2, 5].map(f => f * 10 ** power)).filter(v => v >= low && v <= high);
  if (!(decades >= 2)) {
    const rough = (high - low) / 4, unit = 10 ** Math.floor(Math.log10(rough));
    const step = unit * [1, 2, 5, 10].find(f => f * unit >= rough);
    return Array.from({length: 8}, (_, i) =>
      Math.ceil(low / step) * step + i * step).filter(v => v <= high);
  }
  const every = Math.ceil((last - first) / 6), found = [];
  for (let power = first; power <= last; power += every)
    if (10 ** power >= low) found.push(10 ** power);
  return found;
}
// Each line is a series of the legend, followed by its companions: the band
// and the raw values.
function columnsOf(chart) {
  const columns = [chart.steps], bands = [], companions = {};
  const blank = (value, digits) => value === null || value === undefined ?
    "" : number(value, digits);
  const series = [{label: "step", value: (_, step) =>
    step === null ? "" : count(step)}];
  // A line has no point where the value is undefined, and ends at null.
  const shown = values => chart.log ?
    values.map(v => v === undefined || v > 0 ? v : null) : values;
  for (const line of chart.lines) {
    const index = columns.length;
    const column = shown(line.values);
    const own = [...column.keys()].filter(i => column[i] !== undefined);
    const isGap = i => (column[i] ?? null) === null;
    const sparse = own.filter(i => !isGap(i)).length < own.length / 4;
    // A value between two gaps is no line.
    const lone = own.filter((i, k) =>
      !isGap(i) && isGap(own[k - 1]) && isGap(own[k + 1]));
    const stroke = () => css(line.color), pale = () => css(line.color) + "66";
    const companion = (values, options) => {
      companions[index].push(columns.length);
      columns.push(shown(values));
      series.push({class: "companion", points: {show: false}, ...options});
    };
    companions[index] = [];
    columns.push(column);
    series.push({
      label: line.label, stroke, width: 1.5, spanGaps: sparse,
      points: {show: sparse, size: 6, fill: stroke,
        filter: (_, index, show) => show ? null : lone},
      value: (_, value) => blank(value, 5),
    });
    if (line.low) {
      companion(line.high, {width: 0});
      companion(line.low, {width: 0});
      const high = columns.length - 2;
      bands.push({series: [high, high + 1],
                  fill: () => css(line.color) + "33"});
    }
    if (line.raw) companion(line.raw, {stroke: pale, width: 1});
  }
  return {columns, series, bands, companions};
}
function shade(plot, spans) {
  const {ctx, bbox} = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.fillStyle = css("--mark") + "59";
  for (const [first, last] of spans) {
    const left = plot.valToPos(first, "x", true);
    const right = plot.valToPos(last, "x", true);
    const width = Math.max(right - left, 3 * devicePixelRatio);
    ctx.fillRect((left + right - width) / 2, bbox.top, width, bbox.height);
  }
  ctx.restore();
}

// Groups of tensors by steps. A level is 0 (pale) to 9 (dark), x (violet) or
// blank; a click on a group opens its tensors.
function heat(parent, map, [least, most], gutter) {
  const key = soft(parent, least + " ");
  key.classList.add("key");
  for (let i = 0; i < 10; i++)
    add(key, "i", null, {style: "background: color-mix(in srgb, " +
      `var(--orange) ${shadeOf(i) * 100}%, var(--paper))`});
  key.append(" " + most);
  const box = add(parent, "div", null, {class: "heat", style:
    gutter ? `grid-template-columns: ${gutter}px 1fr; padding-right: 28px` : ""});
  const row = (name, levels, kind, before) => {
    const label = document.createElement("div");
    label.className = "name " + kind;
    label.textContent = label.title = name;
    const cell = document.createElement("div");
    const canvas = add(cell, "canvas");
    box.insertBefore(label, before);
    box.insertBefore(cell, before);
    const paint = () => paintLevels(canvas, levels);
    paint();
    redraws.push(paint);
    return [label, cell];
  };
  for (const {name, levels, tensors} of map.groups) {
    const [label, cell] = row("▸ " + name, levels, "group", null);
    let opened = null;
    for (const [name, value] of Object.entries(
      {role: "button", tabindex: 0, "aria-expanded": false}))
      label.setAttribute(name, value);
    label.onkeydown = event => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      label.click();
    };
    label.onclick = () => {
      const next = cell.nextSibling;
      if (opened) opened.forEach(node => node.remove());
      opened = opened ? null : tensors.flatMap(
        ([tensor, levels]) => row(tensor, levels, "", next));
      label.setAttribute("aria-expanded", Boolean(opened));
      label.textContent = (opened ? "▾ " : "▸ ") + name;
    };
  }
}
const shadeOf = level => .05 + .95 * level / 9;
function paintLevels(canvas, levels) {
  canvas.width = levels.length;
  canvas.height = 1;
  const pen = canvas.getContext("2d");
  [...levels].forEach((c, i) => {
    pen.globalAlpha = c === " " ? 0 : c === "x" ? 1 : shadeOf(Number(c));
    pen.fillStyle = css(c === "x" ? "--mark" : "--orange");
    pen.fillRect(i, 0, 1, 1);
  });
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change",
  () => redraws.forEach(draw => draw()));

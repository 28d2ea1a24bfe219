// Draw the page's charts with uPlot: drag to zoom, double-click to see all.
// uPlot 1.6.32 (MIT, no dependencies, 51 KB) lies beside this file as released;
// plotly's basic bundle would put 1.2 MB into every page.
(() => {
  const data = JSON.parse(document.getElementById("chart-data").textContent);
  const plots = [];

  const color = (name) => () =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const number = (value) => {
    if (value == null) return "–";
    const size = Math.abs(value);
    return value !== 0 && (size < 1e-3 || size >= 1e6)
      ? value.toExponential(2)
      : (+value.toPrecision(5)).toLocaleString("en", {
          maximumFractionDigits: 6,
        });
  };

  const shadeFaults = (faults) => (plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.fillStyle = "#6e40c94d";
    for (const [first, last] of faults) {
      const left = plot.valToPos(first, "x", true);
      const right = plot.valToPos(last, "x", true);
      const width = Math.max(right - left, 3 * devicePixelRatio);
      ctx.fillRect((left + right - width) / 2, bbox.top, width, bbox.height);
    }
    ctx.restore();
  };

  // Each method is one series of the legend, followed by its companions: the
  // band of the seeds, the raw values, the spikes.
  const columnsOf = (chart) => {
    const length = chart.lines[0].values.length;
    const steps = Array.from({ length }, (_, index) => chart.start + index);
    const columns = [steps];
    const series = [{ label: "step", value: (_, step) => number(step) }];
    const bands = [];
    const companions = {};
    for (const line of chart.lines) {
      const main = columns.length;
      const known = line.values.filter((value) => value != null).length;
      const sparse = known < length / 4;
      const companion = (values, options) => {
        companions[main].push(columns.length);
        columns.push(values);
        series.push({ class: "companion", points: { show: false }, ...options });
      };
      companions[main] = [];
      columns.push(line.values);
      series.push({
        label: line.label,
        stroke: line.color,
        width: 1.5,
        spanGaps: sparse,
        points: { show: sparse, size: 6, fill: line.color },
        value: (_, value) => number(value),
      });
      if (line.low) {
        companion(line.high, { width: 0 });
        companion(line.low, { width: 0 });
        const high = columns.length - 2;
        bands.push({ series: [high, high + 1], fill: line.color + "33" });
      }
      if (line.raw) companion(line.raw, { stroke: line.color + "66", width: 1 });
      if (line.marks.length) {
        const marks = Array(length).fill(null);
        for (const [step, value] of line.marks) {
          marks[step - chart.start] = value;
        }
        companion(marks, {
          stroke: line.color,
          paths: () => null,
          points: { show: true, size: 9, width: 1.5, fill: "transparent" },
        });
      }
    }
    return { columns, series, bands, companions };
  };

  const draw = (node, chart) => {
    const { columns, series, bands, companions } = columnsOf(chart);
    const axis = {
      stroke: color("--soft"),
      grid: { stroke: color("--line"), width: 1 },
      ticks: { stroke: color("--line"), width: 1 },
      values: (_, ticks) => ticks.map((t) => (t == null ? "" : number(t))),
    };
    const size = () => ({ width: node.clientWidth, height: 300 });
    const plot = new uPlot(
      {
        ...size(),
        series,
        bands,
        scales: { x: { time: false }, y: { distr: chart.log ? 3 : 1 } },
        axes: [{ ...axis, label: "step" }, { ...axis, size: 64 }],
        cursor: {
          drag: { x: true, y: false },
          sync: { key: chart.group, setSeries: false },
        },
        hooks: {
          drawAxes: [shadeFaults(chart.faults)],
          setSeries: [
            (plot, index, { show }) => {
              if (show == null) return;
              for (const other of companions[index] ?? []) {
                plot.setSeries(other, { show }, false);
              }
            },
          ],
        },
      },
      columns,
      node,
    );
    new ResizeObserver(() => plot.setSize(size())).observe(node);
    plots.push(plot);
  };

  for (const node of document.querySelectorAll("[data-chart]")) {
    draw(node, data[node.dataset.chart]);
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const plot of plots) plot.redraw(false, true);
  });
  window.adagcPlots = plots;
})();

// Draws the charts, and redraws them when points, width or colours change. Text beside each chart has the same content,
// so screen readers skip the charts.
"use strict";

const charts = (() => {
  const drawn = new Map();

  const colour = (name) => {
    // The browser resolves light-dark() only in a style, so a style uses the colour and the script reads the result.
    const probe = document.createElement("i");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };

  const short = new Intl.NumberFormat("en", { notation: "compact" });
  // Times of day, or dates for a range of several days.
  const moment = (ticks) => {
    const part = ticks.at(-1) - ticks[0] > 86400 ? [5, 10] : [11, 16];
    return (tick) => new Date(tick * 1000).toISOString().slice(...part);
  };
  const kinds = {
    rate: () => ({
      series: [{}, { stroke: colour("accent"), fill: colour("fill"), width: 1.5, points: { show: false } }],
      values: (_, ticks) => ticks.map((tick) => short.format(tick)),
    }),
    age: () => ({
      series: [{}, { stroke: colour("second"), width: 1.5, points: { show: false } }],
      values: (_, ticks) => ticks.map((tick) => `${short.format(tick)} s`),
    }),
    latency: () => ({
      series: [{}, ...["accent", "second"].map((name) => ({ stroke: colour(name), width: 1.5, points: { show: false } }))],
      values: (_, ticks) => ticks.map((tick) => `${tick} s`),
    }),
    line: (columns) => ({
      series: [{}, ...["accent", "second"].slice(0, columns - 1).map((name) => ({ stroke: colour(name), width: 1.5, points: { show: false } }))],
      values: (_, ticks) => ticks.map((tick) => short.format(tick)),
    }),
  };

  const options = (place, points) => {
    const kind = kinds[place.dataset.plot](points.length);
    const axis = { stroke: colour("soft"), font: "12px system-ui, sans-serif", ticks: { show: false } };
    return {
      width: place.clientWidth,
      height: place.clientHeight,
      legend: { show: false },
      cursor: { show: false },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
      scales: { y: { range: (_, least, most) => [0, most > 0 ? most * 1.1 : 1] } },
      series: kind.series,
      axes: [
        { ...axis, grid: { show: false }, space: 70, size: 30, values: (_, ticks) => ticks.map(moment(ticks)), incrs: [60, 300, 600, 1800, 3600, 10800, 21600, 86400] },
        { ...axis, grid: { stroke: colour("line"), width: 1 }, size: 56, values: kind.values },
      ],
    };
  };

  const draw = (place) => {
    const points = JSON.parse(place.dataset.points);
    const chart = drawn.get(place);
    if (chart) chart.setData(points);
    else drawn.set(place, new uPlot(options(place, points), points, place));
  };

  const forget = () => {
    for (const chart of drawn.values()) chart.destroy();
    drawn.clear();
  };

  const all = () => {
    for (const place of [...drawn.keys()]) if (!place.isConnected) { drawn.get(place).destroy(); drawn.delete(place); }
    document.querySelectorAll("[data-plot]").forEach(draw);
  };

  const resized = () => {
    for (const [place, chart] of drawn) chart.setSize({ width: place.clientWidth, height: place.clientHeight });
  };

  addEventListener("resize", resized);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { forget(); all(); });
  const strokes = (id) => drawn.get(document.getElementById(id))?.series.slice(1).map((line) => line.stroke());
  return { all, strokes };
})();

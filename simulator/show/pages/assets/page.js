"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const config = { responsive: true, displayModeBar: false };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const themed = (layout, narrow) => {
    const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"), automargin: true };
    const full = structuredClone(layout);
    for (const key of Object.keys(full)) if (/^[xy]axis/.test(key)) full[key] = { ...axis, ...full[key] };
    for (const shape of full.shapes || []) shape.line = { color: colour("--bad"), width: 2, dash: "dash", ...(shape.line || {}) };
    return {
      margin: { l: 10, r: 20, t: 10, b: 10 },
      ...full,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--ink"), size: narrow ? 11 : 13 },
      hoverlabel: { align: "left" },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, ...(full.legend || {}) },
      height: full.height || (narrow ? 380 : 420),
    };
  };

  // An interval on a bar is drawn in the colour of text; by itself it is dark on either paper.
  const inked = (traces) => structuredClone(traces).map((trace) => {
    if (trace.type === "bar" && trace.error_x) trace.error_x.color = colour("--ink");
    return trace;
  });

  const figures = new Map();
  const draw = (box, spec) => {
    figures.set(box, spec);
    const layout = themed(spec.layout, box.clientWidth < 560);
    box.style.minHeight = `${layout.height}px`;
    return Plotly.react(box, inked(spec.data), layout, config).then(() => {
      box.querySelectorAll(".main-svg").forEach((svg) => svg.setAttribute("aria-hidden", "true"));
    });
  };
  const redraw = () => figures.forEach((spec, box) => draw(box, spec));

  const inflated = (text) => {
    const bytes = Uint8Array.from(atob(text), (mark) => mark.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
  };

  const select = (index) => {
    const title = document.getElementById("chosen");
    if (!data.layouts[index] || !title) return;
    const chosen = data.layouts[index];
    title.textContent = chosen.title;
    document.getElementById("chosen-verdict").textContent = chosen.verdict;
    document.getElementById("chosen-command").textContent = chosen.command;
    const number = document.getElementById("choose");
    if (number) number.value = index + 1;
    document.getElementById("panels").hidden = !chosen.memory;
    if (chosen.memory) {
      draw(document.getElementById("figure-memory"), chosen.memory);
      draw(document.getElementById("figure-step"), chosen.step);
    }
    document.querySelectorAll("tr[data-layout]").forEach((row) => {
      row.setAttribute("aria-current", String(Number(row.dataset.layout) === index));
    });
  };

  const knobs = [...document.querySelectorAll("input[data-stride]")];
  const turned = () => {
    for (const knob of knobs) {
      const text = JSON.parse(knob.dataset.values)[knob.value];
      knob.previousElementSibling.value = text;
      knob.setAttribute("aria-valuetext", text);
    }
    select(knobs.reduce((position, knob) => position + knob.valueAsNumber * Number(knob.dataset.stride), 0));
  };

  const sortable = (table) => {
    table.querySelectorAll("thead th").forEach((head, column) => {
      const button = head.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        // A number by its value, with its unit of money; a dash stands below all.
        const key = (row) => {
          const text = row.cells[column].textContent.replace(/,/g, "");
          const [, digits, unit] = text.match(/^[<>±~ ]*([-+]?\d+\.?\d*)([kMB]?)/) || [];
          return digits ? digits * { k: 1e3, M: 1e6, B: 1e9 }[unit || ""] || Number(digits) : text === "-" ? -Infinity : text;
        };
        const rows = [...table.tBodies[0].rows].sort((a, b) => {
          const [x, y] = [key(a), key(b)];
          const order = isNaN(x) || isNaN(y) ? String(x).localeCompare(String(y)) : x < y ? -1 : x > y ? 1 : 0;
          return down ? -order : order;
        });
        table.tBodies[0].append(...rows);
      });
    });
  };

  const start = async () => {
    data.layouts = await inflated(data.layouts);
    const titled = (number) => data.layouts[number].title.replaceAll(", ", "<br>");
    for (const trace of data.figures.pareto?.data || []) trace.text = trace.customdata.map(titled);
    const drawn = [...document.querySelectorAll(".figure[data-figure]")].map((box) => draw(box, data.figures[box.dataset.figure]));
    document.querySelectorAll("table").forEach(sortable);
    document.querySelectorAll("button[data-layout]").forEach((button) => {
      button.addEventListener("click", () => {
        select(Number(button.dataset.layout));
        document.getElementById("chosen").scrollIntoView({ behavior: "smooth", block: "nearest" });
      });
    });
    await Promise.all(drawn);
    const dots = document.querySelector('[data-figure="pareto"]');
    if (dots && data.layouts.length) {
      const number = document.getElementById("choose");
      number.addEventListener("change", () => select(number.valueAsNumber - 1));
      dots.on("plotly_click", (event) => select(event.points[0].customdata));
      select(0);
    }
    for (const knob of knobs) knob.addEventListener("input", turned);
    if (knobs.length) turned();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    addEventListener("beforeprint", redraw);
    document.getElementById("js-plotly-tester")?.setAttribute("aria-hidden", "true");
    document.documentElement.dataset.ready = "yes";
  };
  start();
})();

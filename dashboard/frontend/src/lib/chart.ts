/** A live chart: uPlot's canvas, and beside it a table that says the same in numbers and doubles as the legend. */
import uPlot from "uplot";
import { make, setText } from "./dom.ts";
import { DASH } from "./format.ts";
import type { Frame } from "./frames.ts";
import { colour } from "./theme.ts";
import { clockTime } from "./time.ts";

export interface Series {
  label: string;
  /** Name of the design's colour, without dashes. */
  colour: string;
  fill?: boolean;
  width?: number;
  read(frame: Frame): number | null;
}

export interface ChartOptions {
  series: Series[];
  /** A value in the table, with its unit. */
  format(value: number | null): string;
  /** A tick of an axis whose last is `top`. */
  tick(value: number, top: number): string;
  /** Fixed top of the axis, for shares. */
  top?: number;
  /** The axis never shrinks below this: noise at rest is not a signal. */
  leastTop?: number;
}

/** Seconds without a frame after which a line is broken: there is nothing to draw. */
const GAP_S = 3;

/** Steps of the time axis; uPlot takes the first that leaves room for the labels. */
const TIME_STEPS_S = [10, 30, 60, 120, 300, 600, 900, 1_800];

export class Chart {
  readonly #options: ChartOptions;
  readonly #plot: uPlot;
  readonly #host: HTMLElement;
  readonly #rows: { now: HTMLElement; mean: HTMLElement; peak: HTMLElement }[] = [];
  readonly #when: HTMLElement;
  #columns: (number | null)[][] = [];
  #range: [number, number] = [0, 1];

  constructor(card: HTMLElement, options: ChartOptions) {
    this.#options = options;
    const host = card.querySelector<HTMLElement>("[data-canvas]");
    const legend = card.querySelector<HTMLTableElement>("[data-legend]");
    if (host === null || legend === null) throw new Error("a chart needs a canvas and a legend");
    this.#host = host;
    this.#plot = new uPlot(this.#settings(), [[], ...options.series.map(() => [])], host);
    this.#when = this.#legend(legend);
    new ResizeObserver(() => this.#resize()).observe(host);
    document.addEventListener("galley:theme", () => this.#recolour());
  }

  /** Draws `frames`; the axis runs from `from` to `to` (Unix seconds) even where there is nothing to show. */
  draw(frames: readonly Frame[], from: number, to: number): void {
    const times: number[] = [];
    this.#columns = this.#options.series.map(() => []);
    let before: number | null = null;
    for (const frame of frames) {
      if (before !== null && frame.at - before > GAP_S) this.#append(times, before + 1, null);
      this.#append(times, frame.at, frame);
      before = frame.at;
    }
    this.#range = [from, to];
    this.#plot.setData([times, ...this.#columns] as uPlot.AlignedData, false);
    this.#plot.redraw(true, true);
    this.#plot.setScale("x", { min: from, max: to });
    this.#summary();
  }

  #append(times: number[], at: number, frame: Frame | null): void {
    times.push(at);
    this.#options.series.forEach((series, index) => {
      this.#columns[index]?.push(frame === null ? null : series.read(frame));
    });
  }

  #legend(table: HTMLTableElement): HTMLElement {
    const head = table.createTHead().insertRow();
    const when = make("th", { text: "Now" });
    for (const cell of [make("th", { text: "Series" }), when, make("th", { text: "Mean" }), make("th", { text: "Max" })]) {
      cell.scope = "col";
      head.append(cell);
    }
    const body = table.createTBody();
    this.#options.series.forEach((series, index) => {
      const row = body.insertRow();
      const toggle = make("button", { class: `legend-toggle swatch-${series.colour}` }, make("span", { text: series.label }));
      toggle.type = "button";
      toggle.ariaPressed = "true";
      toggle.title = "Show or hide this line";
      toggle.addEventListener("click", () => {
        const shown = toggle.ariaPressed !== "true";
        toggle.ariaPressed = String(shown);
        this.#plot.setSeries(index + 1, { show: shown });
      });
      const name = make("th", {}, toggle);
      name.scope = "row";
      row.append(name);
      this.#rows.push({ now: row.insertCell(), mean: row.insertCell(), peak: row.insertCell() });
    });
    return when;
  }

  #summary(): void {
    const at = this.#plot.cursor.idx ?? null;
    const { left } = this.#plot.cursor;
    const hovering = at !== null && left !== undefined && left !== null && left >= 0;
    const time = hovering ? this.#plot.data[0]?.[at] : undefined;
    setText(this.#when, time === undefined ? "Now" : clockTime(time));
    this.#rows.forEach((row, index) => {
      const column = this.#columns[index] ?? [];
      const known = column.filter((value) => value !== null);
      const value = hovering ? (column[at] ?? null) : (column.at(-1) ?? null);
      const { format } = this.#options;
      setText(row.now, value === null ? DASH : format(value));
      setText(row.mean, known.length ? format(known.reduce((sum, one) => sum + one, 0) / known.length) : DASH);
      setText(row.peak, known.length ? format(Math.max(...known)) : DASH);
    });
  }

  #resize(): void {
    const { clientWidth: width, clientHeight: height } = this.#host;
    if (width > 0 && height > 0) this.#plot.setSize({ width, height });
  }

  #recolour(): void {
    // uPlot asks for stroke and fill at every draw; the axes and lines here are functions of the theme.
    this.#plot.redraw(false, true);
  }

  #settings(): uPlot.Options {
    const { top, leastTop, tick } = this.#options;
    const axis = { stroke: () => colour("ink-3"), font: `12px "Hanken Grotesk Variable", sans-serif`, ticks: { show: false } };
    const grid = { stroke: () => colour("grid"), width: 1 };
    return {
      width: Math.max(this.#host.clientWidth, 100),
      height: Math.max(this.#host.clientHeight, 100),
      padding: [12, 24, 0, 0],
      legend: { show: false },
      cursor: { sync: { key: "galley" }, y: false, drag: { x: false, y: false }, points: { size: 7 } },
      hooks: { setCursor: [() => this.#summary()] },
      scales: {
        x: { time: true, range: () => this.#range },
        y: {
          range: (_plot, _low, high) =>
            top === undefined ? [0, Math.max((Number.isFinite(high) ? high : 0) * 1.1, leastTop ?? 1)] : [0, top],
        },
      },
      axes: [
        {
          ...axis,
          grid: { show: false },
          space: 64,
          incrs: TIME_STEPS_S,
          size: 28,
          values: (_plot, splits) => splits.map((at) => clockTime(at).slice(0, 5 + (at % 60 === 0 ? 0 : 3))),
        },
        { ...axis, grid, space: 36, size: 52, gap: 6, values: (_plot, splits) => splits.map((value) => tick(value, splits.at(-1) ?? 0)) },
      ],
      series: [
        {},
        ...this.#options.series.map(
          (series): uPlot.Series => ({
            label: series.label,
            stroke: () => colour(series.colour),
            width: series.width ?? 1.75,
            points: { show: false },
            spanGaps: false,
            ...(series.fill ? { fill: () => `color-mix(in oklab, ${colour(series.colour)} 16%, transparent)` } : {}),
          }),
        ),
      ],
    };
  }
}

/** The overview's short list of workers: what each is doing, at a glance. */
import { find, make, setText } from "./dom.ts";
import { age, count } from "./format.ts";
import type { WorkerFrame } from "./frames.ts";
import { stateOf } from "./states.ts";

function row(worker: WorkerFrame): HTMLTableRowElement {
  const element = make("tr");
  element.dataset["worker"] = worker.worker;
  const name = make("th", {}, make("span", { class: "mono", text: worker.worker }), make("span", { class: "tag", text: worker.role }));
  name.scope = "row";
  const meter = make("progress", { class: "meter" });
  meter.max = 1;
  meter.setAttribute("aria-label", `KV use of ${worker.worker}`);
  element.append(
    name,
    make("td", {}, make("span", { class: "state" })),
    make("td", { class: "kv" }, meter, make("span", { class: "num" })),
    make("td", { class: "num" }),
    make("td", { class: "num" }),
  );
  return element;
}

export function drawWorkerList(workers: readonly WorkerFrame[]): void {
  const body = find<HTMLTableSectionElement>("#worker-list");
  find<HTMLElement>("#no-workers").hidden = workers.length > 0;
  find<HTMLElement>("#worker-table").hidden = workers.length === 0;
  const rows = new Map([...body.rows].map((existing) => [existing.dataset["worker"], existing]));
  for (const worker of workers) {
    const element = rows.get(worker.worker) ?? body.appendChild(row(worker));
    rows.delete(worker.worker);
    const [, state, kv, running, step] = element.cells;
    if (!state || !kv || !running || !step) continue;
    const { label, colour } = stateOf(worker.state);
    const badge = find<HTMLElement>(".state", state);
    badge.className = `state state-${worker.stale ? "amber" : colour}`;
    setText(badge, worker.stale ? `Stale for ${age(worker.observed_age_s)}` : label);
    const share = worker.blocks_total ? worker.blocks_used / worker.blocks_total : 0;
    find<HTMLProgressElement>("progress", kv).value = share;
    setText(find(".num", kv), `${Math.round(share * 100)} %`);
    setText(running, `${count(worker.running)} / ${count(worker.waiting)}`);
    setText(step, count(worker.tokens_per_s));
  }
  for (const gone of rows.values()) gone.remove();
}

import { pageData } from "./dom.ts";

export interface StateLook {
  label: string;
  /** A class suffix of styles/components.css. */
  colour: string;
}

let looks: Record<string, StateLook> | null = null;

/** Label and colour of a worker's state: the server's enum says them (fleet's status choices), not this file. */
export function stateOf(state: string): StateLook {
  looks ??= pageData<Record<string, StateLook>>("worker-states");
  return looks[state] ?? { label: state, colour: "grey" };
}

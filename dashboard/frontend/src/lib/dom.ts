/** Small helpers over the DOM; text always goes in as text. */

export function find<T extends Element>(selector: string, root: ParentNode = document): T {
  const element = root.querySelector<T>(selector);
  if (element === null) throw new Error(`page lacks ${selector}`);
  return element;
}

/** Writes only what changed: once a second, for a page of numbers. */
export function setText(element: Element | null | undefined, text: string): void {
  if (element && element.textContent !== text) element.textContent = text;
}

export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  properties: { class?: string; text?: string } = {},
  ...children: Node[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  if (properties.class !== undefined) element.className = properties.class;
  if (properties.text !== undefined) element.textContent = properties.text;
  element.append(...children);
  return element;
}

/** Says something to a screen reader, politely; the same sentence twice is said once. */
export function announce(sentence: string): void {
  setText(document.getElementById("announcements"), sentence);
}

/** Data that the template left for the script in `<script type="application/json" id=...>`. */
export function pageData<T>(id: string): T {
  return JSON.parse(find<HTMLScriptElement>(`#${id}`).textContent ?? "null") as T;
}

export function icon(name: string): SVGSVGElement {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `${document.body.dataset["icons"] ?? ""}#${name}`);
  svg.append(use);
  return svg;
}

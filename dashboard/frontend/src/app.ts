/** What every page does: theme, menus, keyboard, times, dialogs, copying, and htmx with its evaluators switched off. */
import htmx from "htmx.org";
import "idiomorph/htmx";
import { announce } from "./lib/dom.ts";
import { startTheme } from "./lib/theme.ts";
import { localiseTimes, rememberZone } from "./lib/time.ts";

htmx.config.allowEval = false;
htmx.config.includeIndicatorStyles = false;
htmx.config.selfRequestsOnly = true;
htmx.config.historyCacheSize = 0;
htmx.config.timeout = 15_000;
// A refused form comes back as its page with the errors in it (422): show it.
htmx.config.responseHandling = [
  { code: "204", swap: false },
  { code: "[23]..", swap: true },
  { code: "422", swap: true },
  { code: "[45]..", swap: false, error: true },
];

startTheme();
localiseTimes(document);
rememberZone();

document.body.addEventListener("htmx:afterSwap", () => localiseTimes(document));
document.body.addEventListener("htmx:responseError", (event) => {
  const { xhr } = (event as CustomEvent<{ xhr: XMLHttpRequest }>).detail;
  if (xhr.status === 401 || xhr.status === 403) window.location.reload();
  announce(`The server answered ${xhr.status}. Reload the page to see where things stand.`);
});
document.body.addEventListener("htmx:sendError", () => announce("Galley does not answer. Trying again is safe."));

// Dialogs: a partial that lands in #modal opens it.
const modal = document.querySelector<HTMLDialogElement>("#modal");
document.body.addEventListener("htmx:afterSwap", (event) => {
  if (modal !== null && (event as CustomEvent<{ target: Element }>).detail.target === modal && !modal.open) {
    modal.showModal();
  }
});
document.addEventListener("click", (event) => {
  const target = event.target as Element;
  if (modal?.open && (target === modal || target.closest("[data-close]") !== null)) {
    event.preventDefault();
    modal.close();
  }
});
modal?.addEventListener("close", () => {
  // What a dialog did may show in the list behind it; a secret must not stay in the page.
  const changed = modal.querySelector("[data-reload-after]") !== null;
  modal.replaceChildren();
  if (changed) window.location.assign(window.location.pathname);
});

// Menus are <details>: close on Escape and on a click elsewhere.
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll<HTMLDetailsElement>("details.menu[open]")) {
    if (!menu.contains(event.target as Node)) menu.open = false;
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    for (const menu of document.querySelectorAll<HTMLDetailsElement>("details.menu[open]")) {
      menu.open = false;
      menu.querySelector("summary")?.focus();
    }
  }
  const typing = (event.target as Element).closest("input, textarea, select, [contenteditable]") !== null;
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const search = document.querySelector<HTMLInputElement>("[data-search]");
    if (search) {
      event.preventDefault();
      search.focus();
      search.select();
    }
  }
});

// Copy buttons name the element whose text they copy.
document.addEventListener("click", async (event) => {
  const button = (event.target as Element).closest<HTMLButtonElement>("[data-copy]");
  if (button === null) return;
  const source = document.getElementById(button.dataset["copy"] ?? "");
  const label = button.querySelector("[data-copy-label]") ?? button;
  const before = label.textContent ?? "";
  try {
    await navigator.clipboard.writeText((source?.textContent ?? "").trim());
    label.textContent = "Copied";
    announce("Copied to the clipboard");
  } catch {
    // No permission, or not a secure context: select it, so that the reader's own shortcut works.
    if (source) getSelection()?.selectAllChildren(source);
    label.textContent = "Press Ctrl C";
  }
  window.setTimeout(() => (label.textContent = before), 2_000);
});

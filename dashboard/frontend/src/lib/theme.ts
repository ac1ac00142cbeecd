/** Light, dark, or what the system says. Kept in a cookie, so that the server renders the right one at once. */

export type Theme = "system" | "light" | "dark";

const YEAR_S = 31_536_000;

function current(): Theme {
  const value = document.documentElement.dataset["theme"];
  return value === "light" || value === "dark" ? value : "system";
}

function mark(): void {
  for (const button of document.querySelectorAll<HTMLButtonElement>("[data-set-theme]")) {
    button.setAttribute("aria-pressed", String(button.dataset["setTheme"] === current()));
  }
}

function apply(theme: Theme): void {
  if (theme === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
  document.cookie = `galley_theme=${theme}; path=/; max-age=${YEAR_S}; samesite=lax`;
  mark();
  document.dispatchEvent(new CustomEvent("galley:theme"));
}

export function startTheme(): void {
  mark();
  document.addEventListener("click", (event) => {
    const button = (event.target as Element).closest<HTMLButtonElement>("[data-set-theme]");
    if (button) apply(button.dataset["setTheme"] as Theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    document.dispatchEvent(new CustomEvent("galley:theme"));
  });
}

/** Computed colours of the design's custom properties, for canvases: `var()` means nothing to them. */
export function colour(name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

/** Times come as UTC and are shown in the reader's zone, which the page names. */

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const full = new Intl.DateTimeFormat("en-GB", {
  year: "numeric",
  month: "short",
  day: "2-digit",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
});
const exact = new Intl.DateTimeFormat("en-GB", { dateStyle: "full", timeStyle: "long" });

/** Tells the server the reader's zone: sums by hour and day are made there. */
export function rememberZone(): void {
  document.cookie = `galley_zone=${encodeURIComponent(zone)}; path=/; max-age=31536000; samesite=lax`;
}

/** 14:03:22, from Unix seconds. */
export function clockTime(at: number): string {
  return clock.format(at * 1_000);
}

function offsetLabel(): string {
  const part = new Intl.DateTimeFormat("en", { timeZoneName: "shortOffset" })
    .formatToParts()
    .find((piece) => piece.type === "timeZoneName");
  return part?.value ?? "";
}

/** Rewrites every `<time datetime>` below `root` and every place that names the zone. */
export function localiseTimes(root: ParentNode): void {
  for (const element of root.querySelectorAll<HTMLTimeElement>("time[datetime]:not([data-local])")) {
    const instant = new Date(element.dateTime);
    if (Number.isNaN(instant.getTime())) continue;
    element.textContent = full.format(instant);
    element.title = exact.format(instant);
    element.dataset["local"] = "";
  }
  const offset = offsetLabel();
  for (const element of root.querySelectorAll<HTMLElement>("[data-zone]")) {
    element.textContent = zone.replaceAll("_", " ") + (offset && offset !== zone ? ` (${offset})` : "");
  }
}

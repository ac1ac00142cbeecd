/** The page's one live connection: its state beside the title, its changes announced once. */
import { announce, setText } from "./dom.ts";
import { duration } from "./format.ts";
import { LiveFeed, type LiveHandlers, type LiveState } from "./live.ts";

function words(state: LiveState): string {
  switch (state.kind) {
    case "connecting":
      return "Connecting";
    case "waiting":
      return "Waiting for telemetry";
    case "live":
      return "Live";
    case "stale":
      return `Stale for ${duration(state.seconds)}`;
    case "reconnecting":
      return state.seconds > 0 ? `Reconnecting in ${state.seconds} s` : "Reconnecting";
    case "ended":
      return state.reason;
  }
}

/** What a listener needs to know: not each second of it. */
function sentence(state: LiveState, before: LiveState["kind"]): string | null {
  switch (state.kind) {
    case "stale":
      return "Telemetry has stopped; the figures are getting old";
    case "reconnecting":
      return "Live updates lost, reconnecting";
    case "live":
      return before === "stale" || before === "reconnecting" ? "Live again" : null;
    case "ended":
      return state.signIn ? "You are signed out" : state.reason;
    default:
      return null;
  }
}

/** Connects the page. `changed` hears every state, for pages that grey out what is old. */
export function startLive(
  handlers: Omit<LiveHandlers, "state">,
  changed: (state: LiveState) => void = () => undefined,
): void {
  const pill = document.querySelector<HTMLElement>("[data-live]");
  let before: LiveState["kind"] = "connecting";
  const scheme = window.location.protocol === "https:" ? "wss:" : "ws:";
  const feed = new LiveFeed(`${scheme}//${window.location.host}/ws/live`, "/live/snapshot", {
    ...handlers,
    state(state) {
      if (pill) {
        pill.dataset["state"] = state.kind;
        setText(pill, words(state));
      }
      if (state.kind !== before) {
        const text = sentence(state, before);
        if (text !== null) announce(text);
        before = state.kind;
      }
      document.body.classList.toggle("is-stale", state.kind === "stale" || state.kind === "reconnecting");
      changed(state);
      if (state.kind === "ended" && state.signIn) window.location.reload();
    },
  });
  feed.start();
}

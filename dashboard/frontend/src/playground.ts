/** The playground: a chat with a deployed model, and a ticket that says what each answer took. */
import { type ChatMessage, ChatError, type ChatResult, streamChat } from "./lib/chat.ts";
import { announce, find, make, setText } from "./lib/dom.ts";
import { count, DASH, latency } from "./lib/format.ts";

const form = find<HTMLFormElement>("#composer");
const prompt = find<HTMLTextAreaElement>("#prompt");
const model = find<HTMLSelectElement>("#model");
const system = find<HTMLTextAreaElement>("#system");
const temperature = find<HTMLInputElement>("#temperature");
const maxTokens = find<HTMLInputElement>("#max-tokens");
const thread = find<HTMLElement>("#thread");
const scroller = find<HTMLElement>("#thread-scroll");
const send = find<HTMLButtonElement>("#send");
const stop = find<HTMLButtonElement>("#stop");
const clear = find<HTMLButtonElement>("#clear");

const messages: ChatMessage[] = [];
let running: AbortController | null = null;

/** Only while the reader is at the end: who scrolled up wants to read. */
function atEnd(): boolean {
  return scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;
}

function toEnd(): void {
  scroller.scrollTop = scroller.scrollHeight;
}

/** Adds to the thread and stays at its end, if the reader is there. */
function following(add: () => void): void {
  const follow = atEnd();
  add();
  if (follow) toEnd();
}

function bubble(role: "user" | "assistant", text: string): { root: HTMLElement; text: HTMLElement } {
  const body = make("div", { class: "turn-text", text });
  const label = make("h2", { class: "turn-role", text: role === "user" ? "You" : model.value });
  const root = make("li", { class: `turn turn-${role}` }, label, body);
  find<HTMLElement>("#thread-empty").hidden = true;
  thread.append(root);
  return { root, text: body };
}

function fail(root: HTMLElement, error: unknown): void {
  const known = error instanceof ChatError;
  const message = known ? error.message : "Galley does not answer. Is the gateway running?";
  const where = known && error.status === 0 ? "The answer broke off" : "No answer";
  const body = make("div", { class: "notice-body" }, make("strong", { text: where }), make("p", { text: message }));
  if (known) {
    const detail = [error.code, error.requestId].filter((part) => part !== null && part !== "").join(" · ");
    body.append(make("p", { class: "mono", text: detail }));
  } else {
    console.warn(error);
  }
  root.append(make("div", { class: "notice notice-red" }, body));
  announce(`${where}: ${message}`);
}

function ticketLine(name: string, text: string): void {
  setText(find(`[data-ticket="${name}"]`), text);
}

function showTicket(result: ChatResult): void {
  const ttft = latency(result.ttftMs);
  const total = latency(result.elapsedMs);
  const { usage } = result;
  const prompted = usage?.prompt_tokens ?? null;
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? null;
  ticketLine("ttft", `${ttft.value} ${ttft.unit}`);
  ticketLine("speed", result.tokensPerS === null ? DASH : `${count(result.tokensPerS)} tokens/s`);
  ticketLine("total", `${total.value} ${total.unit}`);
  ticketLine("prompt", prompted === null ? DASH : prompted.toLocaleString("en"));
  ticketLine("cached", cached === null ? DASH : cached.toLocaleString("en"));
  ticketLine("completion", usage === null ? DASH : usage.completion_tokens.toLocaleString("en"));
  ticketLine("finish", result.finishReason ?? DASH);
  ticketLine("request", result.requestId ?? DASH);
  const bar = find<HTMLProgressElement>("#ticket-bar");
  bar.max = Math.max(1, prompted ?? 1);
  bar.value = cached ?? 0;
  find<HTMLElement>("#ticket").hidden = false;
  find<HTMLElement>("#ticket-empty").hidden = true;
}

function summary(result: ChatResult): HTMLElement {
  const ttft = latency(result.ttftMs);
  const cached = result.usage?.prompt_tokens_details?.cached_tokens ?? 0;
  const parts = [
    `TTFT ${ttft.value} ${ttft.unit}`,
    result.tokensPerS === null ? "" : `${count(result.tokensPerS)} tokens/s`,
    result.usage === null ? "" : `${count(result.usage.prompt_tokens)} prompt (${count(cached)} cached)`,
    result.usage === null ? "" : `${count(result.usage.completion_tokens)} out`,
    result.finishReason ?? "",
  ];
  return make("p", { class: "turn-stats", text: parts.filter((part) => part !== "").join(" · ") });
}

function setRunning(controller: AbortController | null): void {
  running = controller;
  send.hidden = controller !== null;
  stop.hidden = controller === null;
  clear.disabled = controller !== null;
  thread.ariaBusy = String(controller !== null);
}

function requestMessages(): ChatMessage[] {
  const instructions = system.value.trim();
  return instructions === "" ? messages : [{ role: "system", content: instructions }, ...messages];
}

async function ask(text: string): Promise<void> {
  messages.push({ role: "user", content: text });
  bubble("user", text);
  const answer = bubble("assistant", "");
  answer.root.classList.add("is-waiting");
  toEnd();
  const controller = new AbortController();
  setRunning(controller);
  const request = {
    model: model.value,
    messages: [...requestMessages()],
    temperature: Number(temperature.value),
    max_tokens: Number(maxTokens.value),
  };
  try {
    const result = await streamChat(request, controller.signal, (piece) => {
      following(() => {
        answer.root.classList.remove("is-waiting");
        answer.text.append(piece);
      });
    });
    following(() => answer.root.append(summary(result)));
    showTicket(result);
    announce(`Answer: ${answer.text.textContent ?? ""}`);
  } catch (error) {
    if (controller.signal.aborted) {
      following(() => answer.root.append(make("p", { class: "turn-stats", text: "Stopped" })));
      announce("Stopped");
    } else {
      following(() => fail(answer.root, error));
    }
  } finally {
    answer.root.classList.remove("is-waiting");
    const said = answer.text.textContent ?? "";
    // An answer that never began is no turn: the next request repeats the question as the reader edits it.
    if (said === "") messages.pop();
    else messages.push({ role: "assistant", content: said });
    setRunning(null);
    prompt.focus();
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = prompt.value.trim();
  if (running !== null || text === "" || !form.reportValidity()) return;
  prompt.value = "";
  grow();
  void ask(text);
});

prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    form.requestSubmit();
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});

function grow(): void {
  prompt.style.height = "auto";
  prompt.style.height = `${Math.min(prompt.scrollHeight + 2, 200)}px`;
}

prompt.addEventListener("input", grow);
stop.addEventListener("click", () => running?.abort());
clear.addEventListener("click", () => {
  messages.length = 0;
  for (const turn of thread.querySelectorAll(".turn")) turn.remove();
  find<HTMLElement>("#thread-empty").hidden = false;
  find<HTMLElement>("#ticket").hidden = true;
  find<HTMLElement>("#ticket-empty").hidden = false;
  prompt.focus();
});
const settingsToggle = find<HTMLButtonElement>("#settings-toggle");
settingsToggle.addEventListener("click", () => {
  settingsToggle.ariaExpanded = String(settingsToggle.ariaExpanded !== "true");
});
temperature.addEventListener("input", () => {
  setText(find("#temperature-value"), Number(temperature.value).toFixed(1));
});
for (const button of document.querySelectorAll<HTMLButtonElement>("[data-example]")) {
  button.addEventListener("click", () => {
    prompt.value = button.dataset["example"] ?? "";
    grow();
    prompt.focus();
  });
}

/** One chat completion over the public API, as any client would call it, with the session instead of a key. */
import { events } from "./sse.ts";

export interface ChatMessage {
  role: "system" | "user" | "assistant";
  content: string;
}

export interface ChatRequest {
  model: string;
  messages: ChatMessage[];
  temperature: number;
  max_tokens: number;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens?: number } | null;
}

interface Chunk {
  choices?: { delta?: { content?: string | null; reasoning_content?: string | null }; finish_reason?: string | null }[];
  usage?: Usage | null;
  error?: { message?: string; code?: string | number | null; type?: string };
}

export interface ChatResult {
  /** Milliseconds from sending to the first text. */
  ttftMs: number | null;
  /** Tokens after the first, per second between the first and the last. */
  tokensPerS: number | null;
  usage: Usage | null;
  finishReason: string | null;
  requestId: string | null;
  elapsedMs: number;
}

/** What the API refused, or what ended a stream: `status` is 0 once the stream had begun. */
export class ChatError extends Error {
  readonly status: number;
  readonly code: string;
  readonly requestId: string | null;

  constructor(message: string, status: number, code: string, requestId: string | null) {
    super(message);
    this.name = "ChatError";
    this.status = status;
    this.code = code;
    this.requestId = requestId;
  }
}

function csrfToken(): string {
  return document.querySelector<HTMLMetaElement>('meta[name="csrf-token"]')?.content ?? "";
}

async function refusal(response: Response): Promise<ChatError> {
  const requestId = response.headers.get("x-request-id");
  const text = await response.text();
  let message = `The gateway answered ${response.status}.`;
  let code = String(response.status);
  try {
    const { error, detail } = JSON.parse(text) as Chunk & { detail?: string };
    message = error?.message ?? detail ?? message;
    code = String(error?.code ?? error?.type ?? code);
  } catch {
    // Not JSON: a proxy's page. Its status says more than its markup.
  }
  return new ChatError(message, response.status, code, requestId);
}

/** Streams an answer; `onText` gets each piece. Raises ChatError, or the abort's error when `signal` fires. */
export async function streamChat(
  request: ChatRequest,
  signal: AbortSignal,
  onText: (text: string) => void,
): Promise<ChatResult> {
  const sent = performance.now();
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    signal,
    headers: { "content-type": "application/json", "x-csrftoken": csrfToken(), accept: "text/event-stream" },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
  });
  if (!response.ok || response.body === null) throw await refusal(response);

  const requestId = response.headers.get("x-request-id");
  let firstAt: number | null = null;
  let lastAt = sent;
  let usage: Usage | null = null;
  let finishReason: string | null = null;
  let done = false;
  for await (const data of events(response.body)) {
    if (data === "[DONE]") {
      done = true;
      break;
    }
    const chunk = JSON.parse(data) as Chunk;
    if (chunk.error) {
      throw new ChatError(
        chunk.error.message ?? "The stream broke off.",
        0,
        String(chunk.error.code ?? chunk.error.type ?? "error"),
        requestId,
      );
    }
    const choice = chunk.choices?.[0];
    const text = (choice?.delta?.reasoning_content ?? "") + (choice?.delta?.content ?? "");
    if (text !== "") {
      lastAt = performance.now();
      firstAt ??= lastAt;
      onText(text);
    }
    if (choice?.finish_reason) finishReason = choice.finish_reason;
    if (chunk.usage) usage = chunk.usage;
  }
  if (!done && finishReason === null) throw new ChatError("The stream ended without a finish.", 0, "incomplete", requestId);
  const tokens = usage?.completion_tokens ?? 0;
  const spanS = firstAt === null ? 0 : (lastAt - firstAt) / 1_000;
  return {
    ttftMs: firstAt === null ? null : firstAt - sent,
    tokensPerS: tokens > 1 && spanS > 0 ? (tokens - 1) / spanS : null,
    usage,
    finishReason,
    requestId,
    elapsedMs: performance.now() - sent,
  };
}

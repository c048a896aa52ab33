// Requests to the daemon that served this page.

const RETRY_MILLISECONDS = 500;

/** An answer of status 400 and above, or none (status 0). */
export class ApiError extends Error {
  constructor(readonly status: number, message: string) {
    super(message);
  }
}

async function request(path: string, init: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(`/v1/${path}`, { credentials: "same-origin", ...init });
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    throw new ApiError(0, "The daemon does not answer.");
  }
  if (response.ok || response.status === 304) return response;
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // Not the daemon's own answer: the status has to do.
  }
  throw new ApiError(response.status, message);
}

/** A path with query parameters; lists are repeated, empty values are left out. */
export function withQuery(path: string, query: Record<string, string | number | readonly (string | number)[] | undefined>): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query))
    for (const one of Array.isArray(value) ? value : [value]) if (one !== undefined && one !== "") parameters.append(name, String(one));
  const text = parameters.toString();
  return text ? `${path}?${text}` : path;
}

/** Asked once more if there is no answer: a browser ends its requests when a network comes or goes. */
export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const init = { signal: signal ?? null };
  try {
    return await (await request(path, init)).json();
  } catch (error) {
    if (!(error instanceof ApiError) || error.status) throw error;
  }
  await new Promise((resolve) => setTimeout(resolve, RETRY_MILLISECONDS));
  signal?.throwIfAborted();
  return (await request(path, init)).json();
}

/** A stream of bytes. */
export async function open(path: string, signal: AbortSignal): Promise<ReadableStream<Uint8Array>> {
  return (await request(path, { signal, cache: "no-store" })).body!;
}

export async function post<T>(path: string, body: unknown): Promise<T> {
  const headers = { "Content-Type": "application/json", "Stoker-Session": "1" };
  return (await request(path, { method: "POST", headers, body: JSON.stringify(body) })).json();
}

// The address: `#/q?f=state:running` is the page `q` with a filter. Every view can be shared.

import { computed, signal } from "@preact/signals";

export interface Route {
  page: string;
  argument: string;
  query: URLSearchParams;
}

const address = signal(location.hash);
window.addEventListener("hashchange", () => (address.value = location.hash));

export const route = computed<Route>(() => {
  const [path = "", query = ""] = address.value.replace(/^#\/?/, "").split("?");
  const [page = "", ...rest] = path.split("/");
  let argument = rest.join("/");
  try {
    argument = decodeURIComponent(argument);
  } catch {
    // A damaged address: the page says that there is no such job.
  }
  return { page, argument, query: new URLSearchParams(query) };
});

export const parameter = (name: string) => route.value.query.get(name) ?? "";

export function go(path: string): void {
  location.hash = `#/${path}`;
}

/** Change parameters of this page without a new entry of the browser's history. */
export function setParameters(values: Record<string, string>): void {
  const query = new URLSearchParams(route.peek().query);
  for (const [name, value] of Object.entries(values)) value ? query.set(name, value) : query.delete(name);
  const text = query.toString();
  const [path] = (location.hash || "#/").split("?");
  window.history.replaceState(null, "", `${path}${text ? `?${text}` : ""}`);
  address.value = location.hash;
}

export const jobPath = (id: number | string) => `#/j/${encodeURIComponent(id)}`;

// What a report was given: JSON in an element of its file.

export function reportData<T>(): T {
  return JSON.parse(document.getElementById("data")!.textContent!) as T;
}

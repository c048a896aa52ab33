// Text of a log as lines of styled pieces: colours (SGR), and progress bars that redraw a line.

export interface Piece {
  text: string;
  /** Class names, such as `f1 b`, or empty. */
  style: string;
}

export interface Line {
  pieces: Piece[];
  /** Length of the text. */
  length: number;
}

/** Longest line that is kept; a longer one is cut, and says so. */
const MAX_LINE = 20_000;

/** Longest escape sequence that is waited for. */
const MAX_ESCAPE = 256;

const ERROR = /\b(Traceback \(most recent call last\)|[A-Z]\w*(?:Error|Exception)\b|CUDA out of memory|Segmentation fault|\berror:|\bfatal\b|Killed\b)/i;

/** Takes pieces of a log and keeps its lines. */
export class LogLines {
  readonly lines: Line[] = [];
  private pieces: Piece[] = [];
  private length = 0;
  private cut = 0;
  private style = "";
  private codes = new Map<string, string>();
  private returned = false;
  private rest = "";

  /** Add text; the last line stays open until its end arrives. */
  add(text: string): void {
    // An escape sequence that is not complete yet waits for the next piece.
    const all = this.rest + text;
    const open = /\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?)?$/.exec(all.slice(-MAX_ESCAPE));
    this.rest = open ? open[0] : "";
    const complete = open ? all.slice(0, -open[0].length) : all;
    const token = /\x1b(?:\[([0-?]*)[ -/]*([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])|[\n\r\b]|[^\x1b\n\r\b]+/g;
    for (const [whole, parameters, final] of complete.matchAll(token)) {
      if (whole === "\n") this.endLine();
      else if (whole === "\r") this.returned = true;
      else if (whole === "\b") this.back();
      else if (whole[0] !== "\x1b") this.put(whole);
      else if (final === "m") this.restyle(parameters ?? "");
      else if (final === "K" && this.returned) this.clear();
    }
  }

  /** The line that has no end yet. */
  get open(): Line | null {
    return this.length ? { pieces: this.pieces, length: this.length } : null;
  }

  /** All lines, the open one too. */
  get count(): number {
    return this.lines.length + (this.length ? 1 : 0);
  }

  line(at: number): Line | null {
    return this.lines[at] ?? (at === this.lines.length ? this.open : null);
  }

  private put(text: string): void {
    if (this.returned) this.clear();
    const room = MAX_LINE - this.length;
    if (room <= 0) {
      this.cut += text.length;
      return;
    }
    const kept = text.length > room ? text.slice(0, room) : text;
    this.cut += text.length - kept.length;
    const last = this.pieces.at(-1);
    if (last && last.style === this.style) last.text += kept;
    else this.pieces.push({ text: kept, style: this.style });
    this.length += kept.length;
  }

  private back(): void {
    const last = this.pieces.at(-1);
    if (!last) return;
    last.text = last.text.slice(0, -1);
    this.length--;
    if (!last.text) this.pieces.pop();
  }

  private clear(): void {
    this.pieces = [];
    this.length = this.cut = 0;
    this.returned = false;
  }

  private endLine(): void {
    if (this.cut) this.pieces.push({ text: ` … ${this.cut} more characters`, style: "i" });
    this.lines.push({ pieces: this.pieces, length: this.length });
    this.clear();
  }

  private restyle(parameters: string): void {
    const numbers = parameters.split(/[;:]/).map(Number);
    for (let i = 0; i < numbers.length; i++) {
      const n = numbers[i]!;
      if (n === 0) this.codes.clear();
      else if (n === 1) this.codes.set("weight", "b");
      else if (n === 2) this.codes.set("weight", "d");
      else if (n === 3) this.codes.set("italic", "i");
      else if (n === 4) this.codes.set("line", "u");
      else if (n === 7) this.codes.set("inverse", "v");
      else if (n === 22) this.codes.delete("weight");
      else if (n === 23) this.codes.delete("italic");
      else if (n === 24) this.codes.delete("line");
      else if (n === 27) this.codes.delete("inverse");
      else if (n >= 30 && n <= 37) this.codes.set("fore", `f${n - 30}`);
      else if (n >= 90 && n <= 97) this.codes.set("fore", `f${n - 82}`);
      else if (n >= 40 && n <= 47) this.codes.set("back", `g${n - 40}`);
      else if (n >= 100 && n <= 107) this.codes.set("back", `g${n - 92}`);
      else if (n === 39) this.codes.delete("fore");
      else if (n === 49) this.codes.delete("back");
      else if (n === 38 || n === 48) {
        const isPalette = numbers[i + 1] === 5;
        const colour = isPalette ? sixteen(numbers[i + 2] ?? 7) : nearest(numbers.slice(i + 2, i + 5));
        this.codes.set(n === 38 ? "fore" : "back", `${n === 38 ? "f" : "g"}${colour}`);
        i += isPalette ? 2 : 4;
      }
    }
    this.style = [...this.codes.values()].sort().join(" ");
  }
}

/** One of the 16 colours for one of 256. */
function sixteen(code: number): number {
  if (code < 16) return code;
  if (code >= 232) return code < 244 ? 8 : 7;
  const c = code - 16;
  return nearest([Math.floor(c / 36) * 51, Math.floor((c % 36) / 6) * 51, (c % 6) * 51]);
}

function nearest(rgb: number[]): number {
  const [r = 0, g = 0, b = 0] = rgb;
  const bright = Math.max(r, g, b);
  if (bright < 60) return 8;
  const bit = (value: number) => (value > bright / 2 ? 1 : 0);
  return (bright > 160 ? 8 : 0) + bit(r) + 2 * bit(g) + 4 * bit(b);
}

/** The text of a line. */
export function textOf(line: Line): string {
  return line.pieces.map((piece) => piece.text).join("");
}

/** Index of the first line from `from` on that looks like an error, or -1. */
export function firstError(log: LogLines, from = 0): number {
  for (let at = from; at < log.count; at++) if (ERROR.test(textOf(log.line(at)!))) return at;
  return -1;
}

/** Indices of lines that contain the text, at most `limit`. */
export function search(log: LogLines, text: string, limit = 5000): number[] {
  const wanted = text.toLowerCase();
  const found: number[] = [];
  for (let at = 0; wanted && at < log.count && found.length < limit; at++)
    if (textOf(log.line(at)!).toLowerCase().includes(wanted)) found.push(at);
  return found;
}

// Server-sent events from pieces of text.

export interface Frame {
  event: string;
  data: string;
}

/** Returns a function that takes the next piece and returns the frames that it completes. */
export function frameParser(): (piece: string) => Frame[] {
  let rest = "";
  return (piece) => {
    rest += piece;
    const frames: Frame[] = [];
    for (;;) {
      const end = rest.indexOf("\n\n");
      if (end < 0) return frames;
      const block = rest.slice(0, end);
      rest = rest.slice(end + 2);
      let event = "message";
      const data: string[] = [];
      for (const line of block.split("\n")) {
        if (line.startsWith("event:")) event = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
      }
      if (data.length) frames.push({ event, data: data.join("\n") });
    }
  };
}

/** Lists that arrive one page at a time. */
import type { Plain } from "./plain.js";
import type { Unshown as UnshownMessage } from "./gen/headrace/v1/study_pb.js";
import { plain } from "./plain.js";
import type { Logger } from "./connection.js";

/** How a list is read. */
export interface ListOptions {
  readonly signal?: AbortSignal | undefined;
  /** 500 when absent; at most 1000. */
  readonly pageSize?: number | undefined;
  /** Called with entries that the list leaves out because they cannot be shown; when absent, they are logged. */
  readonly onUnshown?: (left: Plain<UnshownMessage>) => void;
}

interface Page<T> {
  readonly items: readonly T[];
  readonly nextPageToken: string;
  readonly unshown: readonly UnshownMessage[];
}

/** Every item of a list; a page is fetched when the previous one is used up. */
export async function* pages<T>(
  fetch: (page: { pageSize: number; pageToken: string }) => Promise<Page<T>>,
  options: ListOptions,
  logger: Logger | undefined,
): AsyncGenerator<T, void> {
  let pageToken = "";
  do {
    const page = await fetch({ pageSize: options.pageSize ?? 500, pageToken });
    for (const left of page.unshown.map(plain)) {
      if (options.onUnshown) options.onUnshown(left);
      else logger?.warn(`${left.name} cannot be shown: ${left.reason}`);
    }
    yield* page.items;
    pageToken = page.nextPageToken;
  } while (pageToken !== "");
}

/** The items of an async iterator, as an array. */
export async function collect<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}

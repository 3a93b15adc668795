/**
 * Which replica a client uses: the first one in its list, and after a failure the next one.
 *
 * A client stays with a replica as long as it answers. Channels stay open, because other calls may be using them.
 */
import type { Channel } from "./channel.js";

export class Route {
  readonly #open: (replica: string) => Channel;
  readonly #opened = new Map<string, Channel>();
  #replicas: readonly string[];
  #at = 0;
  /** Consecutive failures since a replica last answered. */
  #failures = 0;

  constructor(replicas: readonly string[], open: (replica: string) => Channel) {
    this.#replicas = replicas;
    this.#open = open;
  }

  /** For people. */
  get address(): string {
    return this.#replicas.join(",");
  }

  get size(): number {
    return this.#replicas.length;
  }

  /** The current channel. */
  channel(): Channel {
    const replica = this.#replicas[this.#at] as string;
    const channel = this.#opened.get(replica) ?? this.#open(replica);
    this.#opened.set(replica, channel);
    return channel;
  }

  /** Takes the result of a call on a channel. Of several calls that fail together, only one switches. */
  note(channel: Channel, failed: boolean): void {
    if (!failed) {
      this.#failures = 0;
    } else if (this.#opened.get(this.#replicas[this.#at] as string) === channel) {
      this.#at = (this.#at + 1) % this.#replicas.length;
      this.#failures += 1;
    }
  }

  /** Whether the next replica has not failed since any replica last answered, so it can be tried without waiting. */
  get hasUntried(): boolean {
    return this.#failures > 0 && this.#failures < this.#replicas.length;
  }

  /** Uses these replicas from now on, starting with the first. */
  leadTo(replicas: readonly string[]): void {
    if (replicas.join() === this.#replicas.join()) return;
    this.#replicas = replicas;
    this.#at = this.#failures = 0;
  }

  close(): void {
    for (const channel of this.#opened.values()) channel.close();
  }
}

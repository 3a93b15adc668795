/**
 * Which replica a client talks to: the first one of its list, and after a failure there the next one.
 *
 * A client stays with a replica for as long as that answers. Channels stay open, for other calls may be at work there.
 */
import type { Channel } from "./channel.js";

export class Route {
  readonly #open: (replica: string) => Channel;
  readonly #opened = new Map<string, Channel>();
  #replicas: readonly string[];
  #at = 0;
  /** In a row, since anybody answered. */
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

  /** The channel to use now. */
  channel(): Channel {
    const replica = this.#replicas[this.#at] as string;
    const channel = this.#opened.get(replica) ?? this.#open(replica);
    this.#opened.set(replica, channel);
    return channel;
  }

  /** Learns how a call on a channel went. Of several that fail together, one moves on. */
  note(channel: Channel, failed: boolean): void {
    if (!failed) {
      this.#failures = 0;
    } else if (this.#opened.get(this.#replicas[this.#at] as string) === channel) {
      this.#at = (this.#at + 1) % this.#replicas.length;
      this.#failures += 1;
    }
  }

  /** Whether the next replica has not failed since anybody answered: no reason to wait before it is tried. */
  get hasUntried(): boolean {
    return this.#failures > 0 && this.#failures < this.#replicas.length;
  }

  /** Talks to these replicas from now on, the first one first. */
  leadTo(replicas: readonly string[]): void {
    if (replicas.join() === this.#replicas.join()) return;
    this.#replicas = replicas;
    this.#at = this.#failures = 0;
  }

  close(): void {
    for (const channel of this.#opened.values()) channel.close();
  }
}

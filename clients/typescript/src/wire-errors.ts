/**
 * Converts transport errors to the client's.
 *
 * An error from the server has `grpc-status` in its metadata, and usually an `ErrorInfo`. Any other error comes from
 * the connection: it broke, a deadline passed, or a signal ended the call.
 */
import { Code, ConnectError } from "@connectrpc/connect";

import { HeadraceError, InvalidFieldError, type Violation } from "./errors.js";
import { BadRequestSchema, ErrorInfoSchema } from "./gen/google/rpc/error_details_pb.js";

const DOMAIN = "headrace";

/** The servers that a call can be for, and how each is started. */
export interface Server {
  readonly kind: string;
  readonly address: string;
  /** How such a server is started, if it is not a scheduler. */
  readonly start?: string;
}

/** The error of a call to a server. */
export function fromWire(thrown: unknown, server: Server): HeadraceError {
  if (thrown instanceof HeadraceError) return thrown;
  const error = ConnectError.from(thrown);
  const [info] = error.findDetails(ErrorInfoSchema).filter((found) => found.domain === DOMAIN);
  if (info !== undefined) return told(error, info.reason, info.metadata["remedy"]);
  if (error.code === Code.DeadlineExceeded) {
    const problem = `The ${server.kind} at ${server.address} did not answer in time`;
    return new HeadraceError({ reason: "DEADLINE", problem, cause: error });
  }
  if (error.code === Code.Unavailable || !error.metadata.has("grpc-status")) return ofTheWay(error, server);
  if (error.code === Code.Unimplemented) {
    const problem = `The ${server.kind} at ${server.address} does not know this call (${oneLine(error.rawMessage)})`;
    return new HeadraceError({ reason: "UNSUPPORTED", problem, cause: error });
  }
  // A planner with too many simultaneous calls answers with the same code.
  const large = error.code === Code.ResourceExhausted && error.rawMessage.includes("larger than");
  const reason = large ? "TOO_LARGE" : "INTERNAL";
  const problem = `The ${server.kind} answered ${Code[error.code]}: ${oneLine(error.rawMessage)}`;
  return new HeadraceError({ reason, problem, cause: error });
}

/** Nobody answers. */
export function unreachable(server: Server, cause: unknown, why = ""): HeadraceError {
  const problem = `No Headrace ${server.kind} answers at ${server.address}${why}`;
  return new HeadraceError({ reason: "UNREACHABLE", problem, remedy: server.start, cause });
}

function told(error: ConnectError, reason: string, remedy: string | undefined): HeadraceError {
  if (reason === "INVALID_FIELD") {
    const found = error.findDetails(BadRequestSchema).flatMap((request) => request.fieldViolations);
    return new InvalidFieldError(
      found.map((one) => violation(one.field, one.description)),
      remedy,
    );
  }
  const retryable = error.code === Code.Unavailable;
  return new HeadraceError({ reason, problem: error.rawMessage, remedy, retryable, cause: error });
}

/** The server writes what is wrong, the value and the remedy on separate lines. */
function violation(field: string, description: string): Violation {
  const [message = "", value = "", ...remedy] = description.split("\n");
  return { field, message, value, remedy: remedy.join("\n") };
}

function ofTheWay(error: ConnectError, server: Server): HeadraceError {
  if (/^(serialize|parse) /.test(error.rawMessage)) {
    return new HeadraceError({ reason: "INTERNAL", problem: oneLine(error.rawMessage), cause: error });
  }
  return unreachable(server, error, why(error));
}

/** A text in brackets; empty if nothing listens at the address, as that needs no explanation. */
function why(error: ConnectError): string {
  const said = oneLine(error.rawMessage);
  if (said === "" || said.includes("ECONNREFUSED")) return "";
  const tls = /certificate|self.signed|altname|SSL|TLS/i.test(said);
  return tls ? ` (${said}; the option tls.caFile or HEADRACE_TLS_CA must name the authority of its certificate)` : ` (${said})`;
}

function oneLine(text: string): string {
  return text.split(/\s+/).join(" ").trim().slice(0, 300);
}

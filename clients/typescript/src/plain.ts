/**
 * Converts messages to plain values, and back.
 *
 * A program that uses the client never sees a bigint, a Timestamp or a wrapped parameter: this module defines the
 * form of each. The fields and their names are those of the API, so fields that a newer API adds are included.
 */
import { create, type DescField, type DescMessage, type Message, type MessageShape, ScalarType } from "@bufbuild/protobuf";
import {
  type Duration,
  DurationSchema,
  type Timestamp,
  TimestampSchema,
  timestampDate,
  timestampFromDate,
} from "@bufbuild/protobuf/wkt";

import { invalid } from "./errors.js";
import {
  type ParameterAssignment,
  ParameterAssignmentSchema,
  type ParameterValue,
  ParameterValueSchema,
} from "./gen/headrace/v1/spec_pb.js";

/** The value of one parameter. A whole number is sent as an integer. */
export type Value = number | string | boolean;

/** A configuration: the value of each active parameter, by name. */
export type Params = Readonly<Record<string, Value>>;

/** A message as the client returns it: integers are numbers, timestamps are dates, durations are seconds. */
export type Plain<T> = T extends bigint
  ? number
  : T extends Timestamp
    ? Date
    : T extends Duration
      ? number
      : T extends ParameterAssignment
        ? Params
        : T extends ParameterValue
          ? Value
          : T extends readonly (infer Element)[]
            ? readonly Plain<Element>[]
            : T extends object
              ? { readonly [Key in keyof T as Key extends `$${string}` ? never : Key]: Plain<T[Key]> }
              : T;

/** A message as a caller writes it: in the returned form, with every field optional. */
export type Init<T> = T extends bigint
  ? number
  : T extends Timestamp
    ? Date
    : T extends Duration
      ? number
      : T extends ParameterAssignment
        ? Params
        : T extends ParameterValue
          ? Value
          : T extends readonly (infer Element)[]
            ? readonly Init<Element>[]
            : T extends Message
              ? { readonly [Key in keyof T as Key extends `$${string}` ? never : Key]?: Init<T[Key]> | undefined }
              : T extends object
                ? { readonly [Key in keyof T]: Init<T[Key]> }
                : T;

/** A message as a plain value. An integer above 2^53 loses its last digits. */
export function plain<T extends Message>(message: T): Plain<T> {
  return toPlain(message) as Plain<T>;
}

/**
 * A plain value as a message. Throws InvalidFieldError for a field that the message does not have, or that has the wrong
 * type.
 */
export function message<D extends DescMessage>(desc: D, value: Init<MessageShape<D>>): MessageShape<D> {
  return toMessage(desc, value, "") as MessageShape<D>;
}

/** A number of seconds as a message. */
export function duration(seconds: number): Duration {
  const whole = Math.floor(seconds);
  const nanos = Math.min(999_999_999, Math.round((seconds - whole) * 1e9));
  return create(DurationSchema, { seconds: BigInt(whole), nanos });
}

/** A configuration as a message. */
export function parameters(params: Params, path = "parameters"): ParameterAssignment {
  const values = Object.entries(params).map(([name, value]) => [name, parameterValue(value, `${path}.${name}`)]);
  return create(ParameterAssignmentSchema, { values: Object.fromEntries(values) });
}

function toPlain(value: unknown): unknown {
  if (typeof value === "bigint") return Number(value);
  if (typeof value !== "object" || value === null || value instanceof Uint8Array) return value;
  if (Array.isArray(value)) return value.map(toPlain);
  const { $typeName: type } = value as { $typeName?: string };
  if (type === TimestampSchema.typeName) return timestampDate(value as Timestamp);
  if (type === DurationSchema.typeName) return Number((value as Duration).seconds) + (value as Duration).nanos / 1e9;
  if (type === ParameterAssignmentSchema.typeName) return toPlain((value as ParameterAssignment).values);
  if (type === ParameterValueSchema.typeName) return toPlain((value as ParameterValue).kind.value);
  const fields = Object.entries(value).filter(([name]) => !name.startsWith("$"));
  return Object.fromEntries(fields.map(([name, field]) => [name, toPlain(field)]));
}

function toMessage(desc: DescMessage, value: unknown, path: string): Message {
  if (desc.typeName === TimestampSchema.typeName && value instanceof Date) return timestampFromDate(value);
  if (desc.typeName === DurationSchema.typeName && typeof value === "number") return duration(value);
  if (desc.typeName === ParameterValueSchema.typeName) return parameterValue(value, path);
  if (typeof value !== "object" || value === null || value instanceof Date || Array.isArray(value)) {
    throw invalid(path, value, `is no ${desc.name}`, `Give an object with ${named(desc)}.`);
  }
  if (desc.typeName === ParameterAssignmentSchema.typeName) return parameters(value as Params, path);
  const init: Record<string, unknown> = {};
  for (const [name, given] of Object.entries(value)) {
    if (given === undefined || name.startsWith("$")) continue;
    const member = desc.members.find((one) => one.localName === name);
    if (member === undefined) {
      throw invalid(join(path, name), given, `is no field of ${desc.name}`, `Its fields are ${named(desc)}.`);
    }
    init[name] = member.kind === "oneof" ? choice(member.fields, given, path) : field(member, given, path);
  }
  return create(desc, init);
}

/** One case of several, as `{ case: "float", value: {...} }`. */
function choice(cases: readonly DescField[], given: unknown, path: string): unknown {
  const { case: name, value } = (given ?? {}) as { case?: string; value?: unknown };
  if (name === undefined) return { case: undefined };
  const found = cases.find((one) => one.localName === name);
  if (found === undefined) {
    const known = cases.map((one) => one.localName).join(", ");
    throw invalid(path, name, "is none of the cases that there are", `Choose among ${known}.`);
  }
  return { case: name, value: field(found, value, path) };
}

function field(desc: DescField, value: unknown, path: string): unknown {
  const at = join(path, desc.name);
  switch (desc.fieldKind) {
    case "list":
      if (!Array.isArray(value)) throw invalid(at, value, "is no list", "Give an array.");
      return value.map((one, index) => single(desc, one, `${at}[${index}]`));
    case "map":
      return Object.fromEntries(
        Object.entries((value ?? {}) as object).map(([key, one]) => [key, single(desc, one, `${at}.${key}`)]),
      );
    default:
      return single(desc, value, at);
  }
}

/** The value of a field, or of an entry in a list or a map. */
function single(desc: DescField, value: unknown, path: string): unknown {
  if (desc.message) return toMessage(desc.message, value, path);
  switch (desc.scalar) {
    case ScalarType.INT64:
    case ScalarType.UINT64:
      return BigInt(whole(value, path));
    case ScalarType.DOUBLE:
      return typed("number", value, path);
    case ScalarType.BOOL:
      return typed("boolean", value, path);
    case ScalarType.STRING:
      return typed("string", value, path);
    default: // a smaller integer, or an enum's number
      return whole(value, path);
  }
}

function typed(type: "number" | "boolean" | "string", value: unknown, path: string): unknown {
  if (typeof value === type) return value;
  throw invalid(path, value, `is no ${type}`, `Give a ${type}.`);
}

function whole(value: unknown, path: string): number {
  if (Number.isSafeInteger(value)) return value as number;
  throw invalid(path, value, "is no whole number", "Give an integer.");
}

function parameterValue(value: unknown, path: string): ParameterValue {
  switch (typeof value) {
    case "boolean":
      return create(ParameterValueSchema, { kind: { case: "boolValue", value } });
    case "string":
      return create(ParameterValueSchema, { kind: { case: "stringValue", value } });
    case "number":
      return Number.isSafeInteger(value)
        ? create(ParameterValueSchema, { kind: { case: "intValue", value: BigInt(value) } })
        : create(ParameterValueSchema, { kind: { case: "floatValue", value } });
    default:
      throw invalid(path, value, "is no value of a parameter", "Give a number, a string or a boolean.");
  }
}

const named = (desc: DescMessage): string => desc.members.map((one) => one.localName).join(", ");
const join = (path: string, name: string): string => (path ? `${path}.${name}` : name);

// Prints the JSON schemas of a hundred Zod schemas of real shape: node zod_schemas.mjs > zod_schemas.json (zod 4)
import { z } from "zod";

const node = z.object({ value: z.number(), get children() { return z.array(node); } });
const link = z.object({ name: z.string(), get next() { return link.nullable(); } });
const json = z.lazy(() => z.union([z.string(), z.number(), z.boolean(), z.null(), z.array(json), z.record(z.string(), json)]));
const address = z.object({ street: z.string(), city: z.string(), zip: z.string().regex(/^\d{5}$/) });
const shape = z.discriminatedUnion("kind", [
  z.object({ kind: z.literal("circle"), radius: z.number().positive() }),
  z.object({ kind: z.literal("box"), width: z.number().min(1), height: z.number().min(1) }),
  z.object({ kind: z.literal("label"), text: z.string().max(20) })]);
const fields = {
  str: z.string(), min: z.string().min(3), max: z.string().max(4), both: z.string().min(2).max(3), len: z.string().length(8),
  email: z.email(), url: z.url(), uuid: z.uuid(), uuidv4: z.uuidv4(), cuid: z.cuid(), cuid2: z.cuid2(), ulid: z.ulid(),
  nanoid: z.nanoid(), emoji: z.emoji(), ipv4: z.ipv4(), ipv6: z.ipv6(), cidr: z.cidrv4(), base64: z.base64(),
  base64url: z.base64url(), e164: z.e164(), date: z.iso.date(), time: z.iso.time(), datetime: z.iso.datetime(),
  offset: z.iso.datetime({ offset: true }), duration: z.iso.duration(), starts: z.string().startsWith("ab-"),
  ends: z.string().endsWith(".txt"), includes: z.string().includes("mid"), lower: z.string().lowercase(),
  upper: z.string().uppercase(), regex: z.string().regex(/^[A-Z]{2}\d{2,4}$/), two: z.string().regex(/^a/).regex(/z$/),
  num: z.number(), int: z.int(), int32: z.int32(), positive: z.number().positive(), negative: z.number().negative(),
  nonneg: z.int().nonnegative(), range: z.number().gt(1).lt(2), step: z.number().multipleOf(5), cents: z.number().multipleOf(0.01).min(0).max(10),
  safe: z.number().int().min(10).max(12), bool: z.boolean(), nul: z.null(), any: z.any(), unknown: z.unknown(),
  lit: z.literal("only"), lits: z.literal(["a", "b", 3]), en: z.enum(["low", "high"]), nativeEn: z.enum({ A: 1, B: 2 }),
  opt: z.string().optional(), nullable: z.string().nullable(), nullish: z.int().nullish(), def: z.string().default("hello"),
  pre: z.number().prefault(4), arr: z.array(z.string()), nonempty: z.array(z.int()).nonempty(), arrLen: z.array(z.boolean()).length(4),
  arrMax: z.array(z.string()).max(2), tuple: z.tuple([z.string(), z.int()]), rest: z.tuple([z.string()]).rest(z.number()),
  union: z.union([z.string(), z.int()]), shape, inter: z.intersection(z.object({ a: z.int() }), z.object({ b: z.string() })),
  record: z.record(z.string(), z.int()), recordEnum: z.record(z.enum(["x", "y"]), z.boolean()),
  partialRecord: z.partialRecord(z.enum(["x", "y"]), z.boolean()), strict: z.strictObject({ a: z.int() }),
  loose: z.looseObject({ a: z.int() }), catchall: z.object({ a: z.int() }).catchall(z.string()), node, link, json,
  address, partial: address.partial(), pick: address.pick({ city: true }), extend: address.extend({ country: z.string().length(2) }),
  described: z.string().describe("The city, e.g. Oslo"), readonly: z.array(z.int()).readonly(), deep: z.array(z.array(z.array(z.int()))),
  optionalUnion: z.union([shape, z.null()]).optional(), tmpl: z.templateLiteral(["id-", z.int()]), hex: z.hex(), hash: z.hash("md5"),
  hostname: z.hostname(), xid: z.xid(), ksuid: z.ksuid(), mac: z.string().regex(/^([0-9a-f]{2}:){5}[0-9a-f]{2}$/), slug: z.string().regex(/^[a-z0-9]+(?:-[a-z0-9]+)*$/), pw: z.string().regex(/^(?=.*[a-z])(?=.*\d).{8,}$/),
};
const whole = {
  weather: z.object({ location: z.string().describe("City name"), unit: z.enum(["c", "f"]).optional() }),
  steps: z.object({ steps: z.array(z.object({ explanation: z.string(), output: z.string() })), final_answer: z.string() }),
  recipe: z.object({ recipe: z.object({ name: z.string(), ingredients: z.array(z.object({ name: z.string(), amount: z.string() })), steps: z.array(z.string()) }) }),
  notifications: z.object({ notifications: z.array(z.object({ name: z.string(), message: z.string(), minutesAgo: z.number() })) }),
  user: z.object({ id: z.uuid(), email: z.email(), roles: z.array(z.enum(["admin", "user"])).min(1), profile: z.object({ bio: z.string().max(100).nullable(), birthday: z.iso.date().optional() }) }),
  order: z.object({ items: z.array(z.object({ sku: z.string().regex(/^[A-Z]{3}-\d{3}$/), quantity: z.int().positive() })).min(1).max(5), shipTo: address, note: z.string().optional() }),
  charts: z.object({ title: z.string(), shapes: z.array(shape).min(2) }),
  plan: z.object({ goals: z.array(z.string()).min(1), budget: z.number().nonnegative(), start: z.iso.datetime(), tags: z.record(z.string(), z.string()) }),
  search: z.object({ query: z.string().min(1), page: z.int().min(1).default(1), filters: z.record(z.string(), z.union([z.string(), z.number(), z.boolean()])).optional() }),
  tree: z.object({ root: node, list: link }), data: z.object({ payload: json }), geo: z.object({ lat: z.number().min(-90).max(90), lon: z.number().min(-180).max(180) }),
};
const found = {};
for (const [name, field] of Object.entries(fields)) found["field " + name] = z.toJSONSchema(z.object({ [name]: field }), { unrepresentable: "any" });
for (const [name, schema] of Object.entries(whole)) found[name] = z.toJSONSchema(schema, { unrepresentable: "any" });
console.log("{\n" + Object.entries(found).map(([name, schema]) => JSON.stringify(name) + ": " + JSON.stringify(schema)).join(",\n") + "\n}");

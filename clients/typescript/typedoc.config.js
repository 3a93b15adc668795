import { OptionDefaults } from "typedoc";

/** @type {Partial<import("typedoc").TypeDocOptions>} */
export default {
  entryPoints: ["src/index.ts", "src/trial/index.ts"],
  out: "build/reference",
  readme: "README.md",
  excludePrivate: true,
  excludeExternals: true,
  // The stubs name the message that each type comes from.
  blockTags: [...OptionDefaults.blockTags, "@generated"],
  excludeTags: [...OptionDefaults.excludeTags, "@generated"],
  validation: { notExported: false, invalidLink: true },
  treatWarningsAsErrors: true,
};

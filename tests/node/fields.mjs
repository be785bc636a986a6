// Writes the fields that the vendors' clients may send, by dialect, from the types of their packages:
//
//   npm ci --ignore-scripts && npm install --no-save typescript@5 && node fields.mjs
//
// The lists lie in gateway/internal/app/testdata/fields. A path is a field or a member of an object in one; what stands in an array is
// not followed, nor are objects with names of the caller's choice (schemas, metadata).
import { createRequire } from 'node:module';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';

const require = createRequire(import.meta.url);
const ts = require('typescript');
const out = path.resolve(import.meta.dirname, '../../gateway/internal/app/testdata/fields');

const dialects = {
  chat: ['openai', 'resources/chat/completions/completions.d.ts', 'ChatCompletionCreateParamsBase'],
  completions: ['openai', 'resources/completions.d.ts', 'CompletionCreateParamsBase'],
  responses: ['openai', 'resources/responses/responses.d.ts', 'ResponseCreateParamsBase'],
  messages: ['@anthropic-ai/sdk', 'resources/messages/messages.d.ts', 'MessageCreateParamsBase'],
  messages_beta: ['@anthropic-ai/sdk', 'resources/beta/messages/messages.d.ts', 'MessageCreateParamsBase'],
  count_tokens: ['@anthropic-ai/sdk', 'resources/messages/messages.d.ts', 'MessageCountTokensParams'],
};

mkdirSync(out, { recursive: true });
for (const [dialect, [name, file, root]] of Object.entries(dialects)) {
  const folder = path.resolve(import.meta.dirname, 'node_modules', name);
  const source = path.join(folder, file);
  const program = ts.createProgram([source], { strict: true, noEmit: true, skipLibCheck: true, module: ts.ModuleKind.NodeNext, moduleResolution: ts.ModuleResolutionKind.NodeNext });
  const checker = program.getTypeChecker();
  let declaration;
  ts.forEachChild(program.getSourceFile(source), (node) => {
    if (ts.isInterfaceDeclaration(node) && node.name.text === root) declaration = node;
  });
  if (!declaration) throw new Error(`${name} has no ${root}`);
  const found = new Set();
  const walk = (type, prefix, depth) => {
    for (const part of type.isUnion() ? type.types : [type]) {
      if (!(part.flags & ts.TypeFlags.Object) || checker.isArrayType(part) || checker.isTupleType(part) || part.getCallSignatures().length > 0) continue;
      for (const property of part.getProperties()) {
        const at = prefix + property.name;
        found.add(at);
        if (depth < 4) walk(checker.getTypeOfSymbol(property), `${at}.`, depth + 1);
      }
    }
  };
  walk(checker.getTypeAtLocation(declaration), '', 0);
  const { version } = JSON.parse(readFileSync(path.join(folder, 'package.json')));
  writeFileSync(path.join(out, `${dialect}.txt`), `# ${name} ${version}, ${root}; written by tests/node/fields.mjs\n${[...found].sort().join('\n')}\n`);
}

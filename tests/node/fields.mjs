// Writes the fields that the vendors' clients may send, by dialect, from the types of their packages:
//
//   npm ci --ignore-scripts && npm install --no-save --ignore-scripts typescript@5 && node fields.mjs
//
// The lists lie in gateway/internal/turn/testdata/fields. A line is the path of a field, of a member of an object, or of a variant:
//
//   tool_choice.type                                     members of an object; those of all variants of a union together
//   messages[user].content[image_url].image_url          elements of arrays, by variant: its type, else its role, else the members that it needs
//   messages[user].content[document].source(url).url     variants of objects inside of elements
//   functions[].name                                     elements without variants
//   messages[assistant].content[text] = system[text]     the second path has the same type, and lists its members
//
// What names a variant (type, role) is no field of its own. Objects with names of the caller's choice (schemas, metadata) are not
// followed, nor is a type inside of itself.
import { createRequire } from 'node:module';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';

const require = createRequire(import.meta.url);
const ts = require('typescript');
const out = path.resolve(import.meta.dirname, '../../gateway/internal/turn/testdata/fields');

const dialects = {
  chat: ['openai', 'resources/chat/completions/completions.d.ts', 'ChatCompletionCreateParamsBase'],
  completions: ['openai', 'resources/completions.d.ts', 'CompletionCreateParamsBase'],
  responses: ['openai', 'resources/responses/responses.d.ts', 'ResponseCreateParamsBase'],
  messages: ['@anthropic-ai/sdk', 'resources/messages/messages.d.ts', 'MessageCreateParamsBase'],
  messages_beta: ['@anthropic-ai/sdk', 'resources/beta/messages/messages.d.ts', 'MessageCreateParamsBase'],
  count_tokens: ['@anthropic-ai/sdk', 'resources/messages/messages.d.ts', 'MessageCountTokensParams'],
  count_tokens_beta: ['@anthropic-ai/sdk', 'resources/beta/messages/messages.d.ts', 'MessageCountTokensParams'],
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
  const found = new Set(); // lines
  const homes = new Map(); // type inside of arrays → the path that lists its members

  const parts = (type) => (type.isUnion() ? type.types : [type]);
  const isObject = (type) =>
    (type.flags & ts.TypeFlags.Object) !== 0 && !checker.isArrayType(type) && !checker.isTupleType(type) && type.getCallSignatures().length === 0 &&
    type.getProperties().length > 0 && !checker.getIndexInfoOfType(type, ts.IndexKind.String);
  // words are the literals that a property may be; none when it may be anything else.
  const words = (type, property) => {
    const symbol = type.getProperty(property);
    if (!symbol) return [];
    const values = parts(checker.getTypeOfSymbol(symbol)).filter((part) => (part.flags & (ts.TypeFlags.Undefined | ts.TypeFlags.Null)) === 0);
    return values.every((value) => value.isStringLiteral()) ? values.map((value) => value.value).sort() : [];
  };
  // variant tells one type of a union from the others: by the words of a property, else by what it needs.
  const variant = (type) => {
    const by = ['type', 'role'].find((property) => words(type, property).length > 0);
    if (by) return { by, name: words(type, by).join('|') };
    const needs = type.getProperties().filter((property) => (property.flags & ts.SymbolFlags.Optional) === 0);
    return { name: (needs.length > 0 ? needs : type.getProperties()).map((property) => property.name).sort().join('+') };
  };

  // Types are followed breadth first, so that the shortest path is the one that lists a type's members.
  const queue = [];
  const follow = (type, at, inArray, stack, by) => queue.push({ type, at, inArray, stack, by });
  const value = (type, at, inArray, stack) => {
    const objects = parts(type).filter(isObject);
    for (const object of objects) {
      if (!inArray || objects.length === 1) {
        follow(object, at, inArray, stack);
        continue;
      }
      const { by, name } = variant(object);
      follow(object, `${at}(${name})`, true, stack, by);
    }
    for (const array of parts(type).filter((part) => checker.isArrayType(part))) {
      const elements = parts(checker.getTypeArguments(array)[0]);
      const variants = elements.filter(isObject);
      for (const element of variants) {
        const { by, name } = variant(element);
        follow(element, `${at}[${variants.length > 1 || by === 'type' ? name : ''}]`, true, stack, variants.length > 1 || by === 'type' ? by : undefined);
      }
      for (const element of elements.filter((part) => checker.isArrayType(part))) value(element, `${at}[]`, true, stack);
    }
  };
  follow(checker.getTypeAtLocation(declaration), '', false, []);
  for (let next; (next = queue.shift()); ) {
    const { type, at, inArray, stack, by } = next;
    if (stack.includes(type)) continue;
    if (inArray) {
      const home = homes.get(type);
      if (home && home !== at) {
        found.add(`${at} = ${home}`);
        continue;
      }
      homes.set(type, at);
    }
    if (at) found.add(at);
    for (const property of type.getProperties()) {
      if (property.name === by) continue;
      const path = at ? `${at}.${property.name}` : property.name;
      found.add(path);
      value(checker.getTypeOfSymbol(property), path, inArray, [...stack, type]);
    }
  }
  const { version } = JSON.parse(readFileSync(path.join(folder, 'package.json')));
  const listed = new Set([...found].filter((line) => line.includes(' = ')).map((line) => line.slice(0, line.indexOf(' = '))));
  const lines = [...found].filter((line) => !listed.has(line)).sort();
  writeFileSync(path.join(out, `${dialect}.txt`), `# ${name} ${version}, ${root}; written by tests/node/fields.mjs\n${lines.join('\n')}\n`);
}

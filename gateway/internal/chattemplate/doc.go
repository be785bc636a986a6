// Package chattemplate runs the chat templates that models carry: the part of Jinja that published templates use, with
// the semantics of the Python implementation under the settings of Hugging Face tokenizers (trim_blocks, lstrip_blocks,
// undefined names print as nothing, insertion-ordered dictionaries, json.dumps spacing).
//
// Every string remembers which of its bytes came from outside (message contents, tool definitions, anything a caller
// passes in) and which are the template's own. RenderSegments hands that on, so that a tokenizer can refuse control
// tokens in text that a user wrote. A value from outside is never trusted unless the caller says so with Trusted.
//
// Templates come with model files, so they are foreign programs: source size, nesting, steps, memory, string sizes and
// output are bounded, and nothing reaches the file system, the network or Go's reflection.
//
// Absent on purpose: include, import, extends and blocks (a chat template is one file), recursive loops, autoescaping,
// mutation of lists and dictionaries (the reference sandbox forbids it too).
package chattemplate

// Package turn turns a request of any dialect into a generation, and its output into events. A dialect is a codec
// around it:
//
//	body ──codec──▶ Request ──Prepare──▶ Prepared ──Stream or Whole──▶ generate ──events──▶ the dialect's sink
//
// A codec reads its body with Service.Read, fills a Request (Service.Parse reads all fields that the dialects share:
// sampler, lengths, stops, tools, thinking, format, session …; the codec adds the conversation and its own fields),
// and calls
//
//	Service.Prepare   renders the template, resolves thinking, plans compression, limits the output by tool choice and
//	                  format; what it changed silently is in Prepared.Warnings
//	Service.Stream    runs it as server-sent events through a Stream of the dialect
//	Service.Whole     runs it into a sink and answers with one object
//
// Output reaches the dialect as the events of package emit, in the order of the text: reasoning, content, and for each
// tool call start, arguments in parts, end. The whole answer is by construction the concatenation of the stream.
// generate.Choice holds which tools were called and why the choice ended.
//
// Prepare asks the Budgets of its Deps how long reasoning may last. Service.Render gives the prompt alone,
// for counting.
package turn

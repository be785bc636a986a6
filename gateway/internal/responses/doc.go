// Package responses serves OpenAI's Responses API: input items become a conversation, the output becomes items and
// events, and answers are kept for a while so that later requests can refer to them (docs/spec/http-api.md §6.3, §13).
//
// Clients that ask for no storing carry the reasoning themselves, in encrypted_content. It is sealed with the gateway's
// key (package seal), which a file keeps over restarts (--seal-key-file). Reasoning that another key sealed is left out
// of the prompt without an error. A call that the output limit cuts off is dropped: its item gets no
// response.output_item.done and is no part of the output, because clients run the calls that they are told are done.
package responses

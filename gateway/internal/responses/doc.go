// Package responses serves OpenAI's Responses API: input items become a conversation, the output becomes items and events, and
// answers are kept for a while so that later requests can refer to them (docs/spec/http-api.md §6.3, §13).
package responses

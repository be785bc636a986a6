// Package toolcall holds all about tools and their calls: definitions in one canonical form, the formats in which
// models write calls, the parser that finds calls in a model's text while it is being written, and the memory of calls
// as they were written.
package toolcall

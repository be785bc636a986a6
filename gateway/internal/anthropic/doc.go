// Package anthropic serves Anthropic's Messages API: content blocks become a conversation, the output becomes blocks
// and events (docs/spec/http-api.md §6.4, §14).
package anthropic

// Package openai serves the OpenAI dialect: chat completions and legacy completions, streamed or whole.
package openai

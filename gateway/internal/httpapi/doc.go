// Package httpapi is the HTTP border of the gateway: routing, limits of the transport, request ids, CORS, keys, error
// answers, the log line and the metrics of each request, and the endpoints that describe the server.
package httpapi

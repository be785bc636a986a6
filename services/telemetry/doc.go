// Package telemetry sets up logs and metrics for every process of Tandem.
//
// Logs are zap's, JSON or console, to a writer the caller names; keys come from keys.go. Metrics are OpenTelemetry
// instruments read by a Prometheus exporter. A process without an exporter gets no-op providers: nothing in the product
// may depend on an exporter.
package telemetry

// Package shared is what the gateways of a cluster know together: a small store of records behind the interface Store,
// and a Link that keeps a store that is away from holding up a gateway.
//
// Drivers are Embedded (one process, the default), package etcdstore, and package kubestore. Package storetest holds
// what all of them must pass.
package shared

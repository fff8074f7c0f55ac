// The API server of the oldest Kubernetes that Stanch supports, for what only an API server decides: whether it
// takes the CRDs, and what their rules refuse.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
}

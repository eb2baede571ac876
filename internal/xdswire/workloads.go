package xdswire

import (
	"fmt"

	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Agents ask for the workloads of the identities that call their own workload with this method, for
// metrics. The names of the resources in the request are identities. Each resource in the response
// describes an identity that belongs to one workload.
const (
	WorkloadService = "meshctl.v1.WorkloadService"
	WorkloadMethod  = "FetchWorkloads"
	// MaxWorkloads bounds the identities of a request.
	MaxWorkloads = 1000
)

// fieldOfIdentity holds the identity.
const fieldOfIdentity = "identity"

// workloadFields returns the fields of a described workload by name.
func workloadFields(w *mesh.WorkloadLabels) map[string]*string {
	return map[string]*string{
		"name": &w.Name, "service": &w.Service, "revision": &w.Revision, "app": &w.App, "version": &w.Version, "cluster": &w.Cluster,
	}
}

// EncodeWorkload encodes the workload of an identity. It leaves out what is not known.
func EncodeWorkload(identity string, w mesh.WorkloadLabels) (*anypb.Any, error) {
	fields := map[string]*structpb.Value{fieldOfIdentity: structpb.NewStringValue(identity)}
	for name, value := range workloadFields(&w) {
		if *value != "" {
			fields[name] = structpb.NewStringValue(*value)
		}
	}
	return Any(&structpb.Struct{Fields: fields})
}

// DecodeWorkload decodes what EncodeWorkload encoded.
func DecodeWorkload(a *anypb.Any) (identity string, w mesh.WorkloadLabels, err error) {
	var s structpb.Struct
	if err := a.UnmarshalTo(&s); err != nil {
		return "", w, fmt.Errorf("workload of an identity: %w", err)
	}
	for name, value := range workloadFields(&w) {
		*value = s.GetFields()[name].GetStringValue()
	}
	return s.GetFields()[fieldOfIdentity].GetStringValue(), w, nil
}

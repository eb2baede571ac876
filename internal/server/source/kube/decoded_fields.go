package kube

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/meshctl/meshctl/internal/server/source"
)

// fieldSet lists the fields of a message to keep, by number; nil keeps a whole field. All
// other fields, which are most of an object, are never decoded.
type fieldSet map[protowire.Number]fieldSet

// The fields that source.Converter reads, by kind, as k8s.io/api numbers them.
var (
	metaFields      = fieldSet{1: nil, 3: nil, 6: nil, 8: nil, 11: nil}                      // name, namespace, resourceVersion, creationTimestamp, labels
	annotatedFields = fieldSet{1: nil, 3: nil, 6: nil, 8: nil, 11: nil, 12: readAnnotations} // and annotations
	ownerFields     = fieldSet{1: nil, 3: nil, 6: nil}                                       // kind, name, controller
	container       = fieldSet{6: {1: nil, 3: nil}, 24: nil}                                 // ports (name, containerPort), restartPolicy
	podFields       = fieldSet{
		1: {1: nil, 3: nil, 6: nil, 8: nil, 9: nil, 11: nil, 12: readAnnotations, 13: ownerFields}, // and deletionTimestamp, annotations, ownerReferences
		// containers, serviceAccountName, serviceAccount, nodeName, hostNetwork, initContainers
		2: {2: container, 8: nil, 9: nil, 10: nil, 11: nil, 20: container},
		3: {1: nil, 2: {1: nil, 2: nil}, 6: nil, 12: nil}, // phase, conditions (type, status), podIP, podIPs
	}
	status            = fieldSet{1: nil, 2: {1: nil}, 6: nil}                                               // name, state.waiting, image
	analyzedContainer = fieldSet{1: nil, 2: nil, 4: nil, 6: {1: nil, 3: nil, 4: nil}, 7: {1: nil}, 24: nil} // name, image, args, ports (and protocol), env (name), restartPolicy
	analyzedPodFields = fieldSet{
		1: {1: nil, 3: nil, 6: nil, 8: nil, 9: nil, 11: nil, 12: analyzedAnnotations, 13: ownerFields},
		2: {2: analyzedContainer, 8: nil, 9: nil, 10: nil, 11: nil, 20: analyzedContainer},
		3: {1: nil, 2: {1: nil, 2: nil}, 6: nil, 8: status, 10: status, 12: nil}, // and containerStatuses, initContainerStatuses
	}
	replicaSetFields = fieldSet{
		1: {1: nil, 3: nil, 6: nil, 8: nil, 9: nil, 11: nil, 13: ownerFields},
		3: {6: nil}, // status.conditions
	}
	eventFields    = fieldSet{1: metaFields, 2: {1: nil, 2: nil, 3: nil}, 3: nil, 4: nil, 7: nil} // involvedObject, reason, message, lastTimestamp
	injectorFields = fieldSet{
		1: metaFields,
		2: {1: nil, 2: {1: nil, 3: nil}, 5: nil, 11: nil}, // name, clientConfig (service, url), namespaceSelector, objectSelector
	}
	serviceFields = fieldSet{
		1: annotatedFields,
		// ports, selector, clusterIP, type, externalIPs, sessionAffinity, externalName, clusterIPs,
		// internalTrafficPolicy, trafficDistribution
		2: {1: nil, 2: nil, 3: nil, 4: nil, 5: nil, 7: nil, 10: nil, 18: nil, 22: nil, 23: nil},
		3: {1: nil}, // loadBalancer
	}
	sliceFields = fieldSet{
		1: metaFields,
		2: {1: nil, 2: nil, 3: nil, 4: {1: nil, 2: nil, 3: nil}, 6: nil, 7: nil}, // addresses, conditions, hostname, targetRef, nodeName, zone
		3: nil,
		4: nil,
	}
	nodeFields      = fieldSet{1: metaFields, 3: {5: nil}} // status.addresses
	namespaceFields = fieldSet{1: annotatedFields}
	secretFields    = fieldSet{1: metaFields, 2: nil, 3: nil} // data, type
	configMapFields = fieldSet{1: metaFields, 2: nil}         // data
	nameFields      = fieldSet{1: {1: nil, 3: nil, 6: nil}}   // name, namespace, resourceVersion
)

// readAnnotations keeps only the annotations that source.Converter reads: some tools
// write hundreds of kilobytes of others.
var (
	readAnnotations     = fieldSet{annotation: nil}
	analyzedAnnotations = fieldSet{annotation: {}} // and those that an analysis reads
)

// annotation marks readAnnotations and analyzedAnnotations. It is not a valid field number.
const annotation protowire.Number = 0

var errMalformed = errors.New("malformed protobuf")

// lengthSize is the number of bytes reserved for the length of a kept message, which is
// known only after its content is written.
const lengthSize = 4

// strip appends the kept fields of the message to dst.
func (f fieldSet) strip(dst, message []byte) ([]byte, error) {
	for len(message) > 0 {
		number, typ, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil, errMalformed
		}
		size := protowire.ConsumeFieldValue(number, typ, message[n:])
		if size < 0 {
			return nil, errMalformed
		}
		field := message[:n+size]
		value := message[n : n+size]
		message = message[n+size:]
		inner, kept := f[number]
		analyzed, annotations := inner[annotation]
		switch {
		case !kept, annotations && !isRead(value, analyzed != nil):
			continue
		case inner == nil, annotations:
			dst = append(dst, field...)
			continue
		case typ != protowire.BytesType:
			return nil, errMalformed
		}
		content, _ := protowire.ConsumeBytes(value)
		dst = protowire.AppendTag(dst, number, typ)
		start := len(dst)
		dst = append(dst, make([]byte, lengthSize)...)
		var err error
		if dst, err = inner.strip(dst, content); err != nil {
			return nil, err
		}
		length := len(dst) - start - lengthSize
		if length >= 1<<(7*lengthSize) {
			return nil, errMalformed
		}
		putLength(dst[start:], length)
	}
	return dst, nil
}

// isRead reports whether the value is an entry of annotations that is kept.
func isRead(value []byte, analyzed bool) bool {
	entry, _ := protowire.ConsumeBytes(value)
	key, _ := part(entry, 1)
	return source.ReadsAnnotation(string(key)) || analyzed && source.AnalyzesAnnotation(string(key))
}

// putLength writes a length as a varint of lengthSize bytes.
func putLength(b []byte, length int) {
	for i := range lengthSize {
		b[i] = byte(length>>(7*i))&0x7f | 0x80
	}
	b[lengthSize-1] &= 0x7f
}

package xdswire

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// NameInfo is an entry of a name table, in the form of Istio's JSON.
type NameInfo struct {
	IPs       []string `json:"ips"`
	Registry  string   `json:"registry,omitempty"`
	Shortname string   `json:"shortname,omitempty"`
	Namespace string   `json:"namespace,omitempty"`
}

// NameTable returns the entries of an encoded istio.networking.nds.v1.NameTable by host. No
// module that this one may import has the message.
func NameTable(b []byte) (map[string]NameInfo, error) {
	table := map[string]NameInfo{}
	err := Fields(b, func(number protowire.Number, entry []byte) error {
		if number != 1 {
			return nil
		}
		var name string
		var info NameInfo
		err := Fields(entry, func(number protowire.Number, value []byte) error {
			if number == 1 {
				name = string(value)
				return nil
			}
			return Fields(value, func(number protowire.Number, v []byte) error {
				switch number {
				case 1:
					info.IPs = append(info.IPs, string(v))
				case 2:
					info.Registry = string(v)
				case 3:
					info.Shortname = string(v)
				case 4:
					info.Namespace = string(v)
				}
				return nil
			})
		})
		table[name] = info
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("name table: %w", err)
	}
	return table, nil
}

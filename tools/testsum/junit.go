package main

import (
	"encoding/xml"
	"fmt"
	"os"
)

// readJUnit counts the cases of a JUnit file as ctest writes it.
func readJUnit(path string) (Result, error) {
	var result Result
	data, err := os.ReadFile(path)
	if err != nil {
		return result, err
	}
	var suite struct {
		Cases []struct {
			Name    string `xml:"name,attr"`
			Failure *struct {
				Message string `xml:"message,attr"`
			} `xml:"failure"`
			Skipped *struct {
				Message string `xml:"message,attr"`
			} `xml:"skipped"`
		} `xml:"testcase"`
	}
	if err := xml.Unmarshal(data, &suite); err != nil {
		return result, fmt.Errorf("%s: %w", path, err)
	}
	for _, c := range suite.Cases {
		switch {
		case c.Failure != nil:
			result.Failed++
			result.Failures = append(result.Failures, c.Name)
		case c.Skipped != nil:
			result.Skipped++
			result.Skips = append(result.Skips, c.Name+": "+c.Skipped.Message)
		default:
			result.Passed++
		}
	}
	return result, nil
}

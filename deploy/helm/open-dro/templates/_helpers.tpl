{{- define "open-dro.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "open-dro.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "open-dro.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "open-dro.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "open-dro.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "open-dro.configMap" -}}
{{- .Values.config.existingConfigMap | default (include "open-dro.fullname" .) -}}
{{- end -}}

{{- define "open-dro.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "open-dro.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- /* A drain takes three limits at the most, a stop 6 seconds. */ -}}
{{- define "open-dro.gracePeriod" -}}
{{- $needed := add 15 (ternary (mul 3 .Values.drain.limitSeconds) 0 .Values.drain.enabled) -}}
{{- $given := .Values.terminationGracePeriodSeconds | int64 -}}
{{- if and $given (lt $given $needed) -}}
{{- fail (printf "terminationGracePeriodSeconds: %d is less than the %d seconds that drain.limitSeconds and the stop may take" $given $needed) -}}
{{- end -}}
{{- $given | default $needed -}}
{{- end -}}

{{- define "open-dro.probe" -}}
{{- $probe := index .root.Values.probes .name -}}
{{- if .root.Values.monitor.enabled }}
httpGet:
  path: {{ .path }}
  port: monitor
{{- else }}
exec:
  command: ["python", "/opt/tnwgd/health.py"]
{{- end }}
periodSeconds: {{ $probe.periodSeconds | int64 }}
timeoutSeconds: {{ $probe.timeoutSeconds | int64 }}
failureThreshold: {{ $probe.failureThreshold | int64 }}
{{- end -}}

{{- /* What no schema can say. */ -}}
{{- define "open-dro.check" -}}
{{- if not .Values.config.existingConfigMap -}}
{{- $main := index .Values.config.files .Values.config.main -}}
{{- if not $main -}}
{{- fail (printf "config.main: %s is none of config.files" .Values.config.main) -}}
{{- end -}}
{{- $plain := regexReplaceAll "(?s)<!--.*?-->" $main "" -}}
{{- $found := regexFind "<web-monitor>[^<]*</web-monitor>" $plain | trimPrefix "<web-monitor>" | trimSuffix "</web-monitor>" | trim -}}
{{- if .Values.monitor.enabled -}}
{{- if not (hasSuffix (printf ":%d" (int .Values.monitor.port)) $found) -}}
{{- fail (printf "monitor.port: %s needs <web-monitor>*:%d</web-monitor>, or set monitor.enabled to false" .Values.config.main (int .Values.monitor.port)) -}}
{{- end -}}
{{- if or (hasPrefix "127." $found) (hasPrefix "localhost:" $found) -}}
{{- fail (printf "monitor.enabled: <web-monitor>%s</web-monitor> of %s is not reached by probes; write *:%d" $found .Values.config.main (int .Values.monitor.port)) -}}
{{- end -}}
{{- end -}}
{{- range $name, $text := .Values.config.files -}}
{{- if regexMatch "[\\x00-\\x08\\x0B\\x0C\\x0E-\\x1F\\x7F-\\x{9F}\\x{2028}\\x{2029}]" $text -}}
{{- fail (printf "config.files: %s has a control character, or a line separator of Unicode" $name) -}}
{{- end -}}
{{- end -}}
{{- range .Values.secrets -}}
{{- if not (contains (printf "/etc/tnwgd-secrets/%s/" .) ($.Values.config.files | values | join "")) -}}
{{- fail (printf "secrets: nothing of config.files names /etc/tnwgd-secrets/%s/" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $names := ternary (list "monitor") list .Values.monitor.enabled -}}
{{- $ports := ternary (list (int .Values.monitor.port)) list .Values.monitor.enabled -}}
{{- range .Values.peerLinks -}}
{{- if or (has .name $names) (has (int .port) $ports) -}}
{{- fail (printf "peerLinks: %s, port %d: another link or the monitor has that name or that port" .name (int .port)) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- $ports = append $ports (int .port) -}}
{{- end -}}
{{- if and .Values.podMonitor.enabled (not .Values.monitor.enabled) -}}
{{- fail "podMonitor.enabled: there are no metrics without monitor.enabled" -}}
{{- end -}}
{{- if and .Values.tokens.secretName (not .Values.monitor.enabled) -}}
{{- fail "tokens.secretName: there is no admin API without monitor.enabled" -}}
{{- end -}}
{{- if and .Values.hostNetwork .Values.networkPolicy.enabled -}}
{{- fail "networkPolicy.enabled: a NetworkPolicy has no effect with hostNetwork; use a firewall of the node" -}}
{{- end -}}
{{- if and .Values.hostNetwork .Values.multusNetworks -}}
{{- fail "multusNetworks: a pod with hostNetwork gets no other networks" -}}
{{- end -}}
{{- end -}}

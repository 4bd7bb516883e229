// Sample packets that the service brings along. All are simulated.

export const SAMPLES = [
  ["lsst_9876522240000007.avro", "Rubin: 60 observations, 12 detections"],
  ["lsst_9876522220000000.avro", "Rubin: a single detection"],
  ["lsst_9876522420000003.avro", "Rubin: 49 observations, 20 detections"],
  ["lsst_9876523320000001.avro", "Rubin: 330 observations, 74 detections"],
  ["ztf_ZTF26ixrptgi.avro", "ZTF: 24 observations, 12 detections"],
  ["ztf_ZTF26dqoimhj.avro", "ZTF: 11 observations, 5 detections"],
  ["ztf_ZTF26eyhafal.avro", "ZTF: 12 observations, 4 detections"],
  ["ztf_ZTF26csscpip.avro", "ZTF: 17 observations, 3 detections"],
  ["elasticc_9876522430000005.avro", "ELAsTiCC: 56 observations, 25 detections"],
  ["elasticc_9876523250000002.avro", "ELAsTiCC: 284 observations, periodic"],
  ["elasticc_9876522230000002.avro", "ELAsTiCC: 57 observations, 8 detections"],
  ["elasticc_9876522320000000.avro", "ELAsTiCC: two detections"],
];

/*M!999999\- enable the sandbox mode */ 

/*!40101 SET @OLD_CHARACTER_SET_CLIENT=@@CHARACTER_SET_CLIENT */;
/*!40101 SET @OLD_CHARACTER_SET_RESULTS=@@CHARACTER_SET_RESULTS */;
/*!40101 SET @OLD_COLLATION_CONNECTION=@@COLLATION_CONNECTION */;
/*!40101 SET NAMES utf8mb4 */;
/*!40103 SET @OLD_TIME_ZONE=@@TIME_ZONE */;
/*!40103 SET TIME_ZONE='+00:00' */;
/*!40014 SET @OLD_UNIQUE_CHECKS=@@UNIQUE_CHECKS, UNIQUE_CHECKS=0 */;
/*!40014 SET @OLD_FOREIGN_KEY_CHECKS=@@FOREIGN_KEY_CHECKS, FOREIGN_KEY_CHECKS=0 */;
/*!40101 SET @OLD_SQL_MODE=@@SQL_MODE, SQL_MODE='NO_AUTO_VALUE_ON_ZERO' */;
/*!40111 SET @OLD_SQL_NOTES=@@SQL_NOTES, SQL_NOTES=0 */;
DROP TABLE IF EXISTS `auth_group`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `auth_group` (
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `name` varchar(150) NOT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `name` (`name`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `auth_group` WRITE;
/*!40000 ALTER TABLE `auth_group` DISABLE KEYS */;
/*!40000 ALTER TABLE `auth_group` ENABLE KEYS */;
UNLOCK TABLES;
DROP TABLE IF EXISTS `auth_group_permissions`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `auth_group_permissions` (
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `group_id` int(11) NOT NULL,
  `permission_id` int(11) NOT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `auth_group_permissions_group_id_permission_id_0cd325b0_uniq` (`group_id`,`permission_id`),
  KEY `auth_group_permissio_permission_id_84c5c92e_fk_auth_perm` (`permission_id`),
  CONSTRAINT `auth_group_permissio_permission_id_84c5c92e_fk_auth_perm` FOREIGN KEY (`permission_id`) REFERENCES `auth_permission` (`id`),
  CONSTRAINT `auth_group_permissions_group_id_b120cbf9_fk_auth_group_id` FOREIGN KEY (`group_id`) REFERENCES `auth_group` (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `auth_group_permissions` WRITE;
/*!40000 ALTER TABLE `auth_group_permissions` DISABLE KEYS */;
/*!40000 ALTER TABLE `auth_group_permissions` ENABLE KEYS */;
UNLOCK TABLES;
DROP TABLE IF EXISTS `auth_permission`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `auth_permission` (
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `name` varchar(255) NOT NULL,
  `content_type_id` int(11) NOT NULL,
  `codename` varchar(100) NOT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `auth_permission_content_type_id_codename_01ab375a_uniq` (`content_type_id`,`codename`),
  CONSTRAINT `auth_permission_content_type_id_2f476e4b_fk_django_co` FOREIGN KEY (`content_type_id`) REFERENCES `django_content_type` (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=37 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `auth_permission` WRITE;
/*!40000 ALTER TABLE `auth_permission` DISABLE KEYS */;
INSERT INTO `auth_permission` VALUES (1,'Can add content type',1,'add_contenttype');
INSERT INTO `auth_permission` VALUES (2,'Can change content type',1,'change_contenttype');
INSERT INTO `auth_permission` VALUES (3,'Can delete content type',1,'delete_contenttype');
INSERT INTO `auth_permission` VALUES (4,'Can view content type',1,'view_contenttype');
INSERT INTO `auth_permission` VALUES (5,'Can add permission',2,'add_permission');
INSERT INTO `auth_permission` VALUES (6,'Can change permission',2,'change_permission');
INSERT INTO `auth_permission` VALUES (7,'Can delete permission',2,'delete_permission');
INSERT INTO `auth_permission` VALUES (8,'Can view permission',2,'view_permission');
INSERT INTO `auth_permission` VALUES (9,'Can add group',3,'add_group');
INSERT INTO `auth_permission` VALUES (10,'Can change group',3,'change_group');
INSERT INTO `auth_permission` VALUES (11,'Can delete group',3,'delete_group');
INSERT INTO `auth_permission` VALUES (12,'Can view group',3,'view_group');
INSERT INTO `auth_permission` VALUES (13,'Can add user',4,'add_user');
INSERT INTO `auth_permission` VALUES (14,'Can change user',4,'change_user');
INSERT INTO `auth_permission` VALUES (15,'Can delete user',4,'delete_user');
INSERT INTO `auth_permission` VALUES (16,'Can view user',4,'view_user');
INSERT INTO `auth_permission` VALUES (17,'Can add Scheduled task',5,'add_schedule');
INSERT INTO `auth_permission` VALUES (18,'Can change Scheduled task',5,'change_schedule');
INSERT INTO `auth_permission` VALUES (19,'Can delete Scheduled task',5,'delete_schedule');
INSERT INTO `auth_permission` VALUES (20,'Can view Scheduled task',5,'view_schedule');
INSERT INTO `auth_permission` VALUES (21,'Can add Task',6,'add_task');
INSERT INTO `auth_permission` VALUES (22,'Can change Task',6,'change_task');
INSERT INTO `auth_permission` VALUES (23,'Can delete Task',6,'delete_task');
INSERT INTO `auth_permission` VALUES (24,'Can view Task',6,'view_task');
INSERT INTO `auth_permission` VALUES (25,'Can add Failed task',7,'add_failure');
INSERT INTO `auth_permission` VALUES (26,'Can change Failed task',7,'change_failure');
INSERT INTO `auth_permission` VALUES (27,'Can delete Failed task',7,'delete_failure');
INSERT INTO `auth_permission` VALUES (28,'Can view Failed task',7,'view_failure');
INSERT INTO `auth_permission` VALUES (29,'Can add Successful task',8,'add_success');
INSERT INTO `auth_permission` VALUES (30,'Can change Successful task',8,'change_success');
INSERT INTO `auth_permission` VALUES (31,'Can delete Successful task',8,'delete_success');
INSERT INTO `auth_permission` VALUES (32,'Can view Successful task',8,'view_success');
INSERT INTO `auth_permission` VALUES (33,'Can add Queued task',9,'add_ormq');
INSERT INTO `auth_permission` VALUES (34,'Can change Queued task',9,'change_ormq');
INSERT INTO `auth_permission` VALUES (35,'Can delete Queued task',9,'delete_ormq');
INSERT INTO `auth_permission` VALUES (36,'Can view Queued task',9,'view_ormq');
/*!40000 ALTER TABLE `auth_permission` ENABLE KEYS */;
UNLOCK TABLES;
DROP TABLE IF EXISTS `auth_user`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `auth_user` (
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `password` varchar(128) NOT NULL,
  `last_login` datetime(6) DEFAULT NULL,
  `is_superuser` tinyint(1) NOT NULL,
  `username` varchar(150) NOT NULL,
  `first_name` varchar(150) NOT NULL,
  `last_name` varchar(150) NOT NULL,
  `email` varchar(254) NOT NULL,
  `is_staff` tinyint(1) NOT NULL,
  `is_active` tinyint(1) NOT NULL,
  `date_joined` datetime(6) NOT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `username` (`username`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `auth_user` WRITE;
/*!40000 ALTER TABLE `auth_user` DISABLE KEYS */;
/*!40000 ALTER TABLE `auth_user` ENABLE KEYS */;
UNLOCK TABLES;
DROP TABLE IF EXISTS `auth_user_groups`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `auth_user_groups` (
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `user_id` int(11) NOT NULL,
  `group_id` int(11) NOT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `auth_user_groups_user_id_group_id_94350c0c_uniq` (`user_id`,`group_id`),
  KEY `auth_user_groups_group_id_97559544_fk_auth_group_id` (`group_id`),
  CONSTRAINT `auth_user_groups_group_id_97559544_fk_auth_group_id` FOREIGN KEY (`group_id`) REFERENCES `auth_group` (`id`),
  CONSTRAINT `auth_user_groups_user_id_6a12ed8b_fk_auth_user_id` FOREIGN KEY (`user_id`) REFERENCES `auth_user` (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `auth_user_groups` WRITE;
/*!40000 ALTER TABLE `auth_user_groups` DISABLE KEYS */;
/*!40000 ALTER TABLE `auth_user_groups` ENABLE KEYS */;
UNLOCK TABLES;
DROP TABLE IF EXISTS `auth_user_user_permissions`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `auth_user_user_permissions` (
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `user_id` int(11) NOT NULL,
  `permission_id` int(11) NOT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `auth_user_user_permissions_user_id_permission_id_14a6b632_uniq` (`user_id`,`permission_id`),
  KEY `auth_user_user_permi_permission_id_1fbb5f2c_fk_auth_perm` (`permission_id`),
  CONSTRAINT `auth_user_user_permi_permission_id_1fbb5f2c_fk_auth_perm` FOREIGN KEY (`permission_id`) REFERENCES `auth_permission` (`id`),
  CONSTRAINT `auth_user_user_permissions_user_id_a95ead1b_fk_auth_user_id` FOREIGN KEY (`user_id`) REFERENCES `auth_user` (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `auth_user_user_permissions` WRITE;
/*!40000 ALTER TABLE `auth_user_user_permissions` DISABLE KEYS */;
/*!40000 ALTER TABLE `auth_user_user_permissions` ENABLE KEYS */;
UNLOCK TABLES;
DROP TABLE IF EXISTS `django_content_type`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `django_content_type` (
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `app_label` varchar(100) NOT NULL,
  `model` varchar(100) NOT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `django_content_type_app_label_model_76bd3d3b_uniq` (`app_label`,`model`)
) ENGINE=InnoDB AUTO_INCREMENT=10 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `django_content_type` WRITE;
/*!40000 ALTER TABLE `django_content_type` DISABLE KEYS */;
INSERT INTO `django_content_type` VALUES (3,'auth','group');
INSERT INTO `django_content_type` VALUES (2,'auth','permission');
INSERT INTO `django_content_type` VALUES (4,'auth','user');
INSERT INTO `django_content_type` VALUES (1,'contenttypes','contenttype');
INSERT INTO `django_content_type` VALUES (7,'django_q','failure');
INSERT INTO `django_content_type` VALUES (9,'django_q','ormq');
INSERT INTO `django_content_type` VALUES (5,'django_q','schedule');
INSERT INTO `django_content_type` VALUES (8,'django_q','success');
INSERT INTO `django_content_type` VALUES (6,'django_q','task');
/*!40000 ALTER TABLE `django_content_type` ENABLE KEYS */;
UNLOCK TABLES;
DROP TABLE IF EXISTS `django_migrations`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `django_migrations` (
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `app` varchar(255) NOT NULL,
  `name` varchar(255) NOT NULL,
  `applied` datetime(6) NOT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=34 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `django_migrations` WRITE;
/*!40000 ALTER TABLE `django_migrations` DISABLE KEYS */;
INSERT INTO `django_migrations` VALUES (1,'contenttypes','0001_initial','2026-11-24 04:46:56.340140');
INSERT INTO `django_migrations` VALUES (2,'contenttypes','0002_remove_content_type_name','2026-11-24 04:46:56.364902');
INSERT INTO `django_migrations` VALUES (3,'auth','0001_initial','2026-11-24 04:46:56.529362');
INSERT INTO `django_migrations` VALUES (4,'auth','0002_alter_permission_name_max_length','2026-11-24 04:46:56.545971');
INSERT INTO `django_migrations` VALUES (5,'auth','0003_alter_user_email_max_length','2026-11-24 04:46:56.558030');
INSERT INTO `django_migrations` VALUES (6,'auth','0004_alter_user_username_opts','2026-11-24 04:46:56.563101');
INSERT INTO `django_migrations` VALUES (7,'auth','0005_alter_user_last_login_null','2026-11-24 04:46:56.581261');
INSERT INTO `django_migrations` VALUES (8,'auth','0006_require_contenttypes_0002','2026-11-24 04:46:56.582206');
INSERT INTO `django_migrations` VALUES (9,'auth','0007_alter_validators_add_error_messages','2026-11-24 04:46:56.591321');
INSERT INTO `django_migrations` VALUES (10,'auth','0008_alter_user_username_max_length','2026-11-24 04:46:56.604647');
INSERT INTO `django_migrations` VALUES (11,'auth','0009_alter_user_last_name_max_length','2026-11-24 04:46:56.633837');
INSERT INTO `django_migrations` VALUES (12,'auth','0010_alter_group_name_max_length','2026-11-24 04:46:56.657387');
INSERT INTO `django_migrations` VALUES (13,'auth','0011_update_proxy_permissions','2026-11-24 04:46:56.662909');
INSERT INTO `django_migrations` VALUES (14,'auth','0012_alter_user_first_name_max_length','2026-11-24 04:46:56.676042');
INSERT INTO `django_migrations` VALUES (15,'django_q','0001_initial','2026-11-24 04:46:56.692499');
INSERT INTO `django_migrations` VALUES (16,'django_q','0002_auto_20150630_1624','2026-11-24 04:46:56.724257');
INSERT INTO `django_migrations` VALUES (17,'django_q','0003_auto_20150708_1326','2026-11-24 04:46:56.751801');
INSERT INTO `django_migrations` VALUES (18,'django_q','0004_auto_20150710_1043','2026-11-24 04:46:56.756522');
INSERT INTO `django_migrations` VALUES (19,'django_q','0005_auto_20150718_1506','2026-11-24 04:46:56.775095');
INSERT INTO `django_migrations` VALUES (20,'django_q','0006_auto_20150805_1817','2026-11-24 04:46:56.789424');
INSERT INTO `django_migrations` VALUES (21,'django_q','0007_ormq','2026-11-24 04:46:56.799156');
INSERT INTO `django_migrations` VALUES (22,'django_q','0008_auto_20160224_1026','2026-11-24 04:46:56.803106');
INSERT INTO `django_migrations` VALUES (23,'django_q','0009_auto_20171009_0915','2026-11-24 04:46:56.825944');
INSERT INTO `django_migrations` VALUES (24,'django_q','0010_auto_20200610_0856','2026-11-24 04:46:56.834401');
INSERT INTO `django_migrations` VALUES (25,'django_q','0011_auto_20200628_1055','2026-11-24 04:46:56.846452');
INSERT INTO `django_migrations` VALUES (26,'django_q','0012_auto_20200702_1608','2026-11-24 04:46:56.849199');
INSERT INTO `django_migrations` VALUES (27,'django_q','0013_task_attempt_count','2026-11-24 04:46:56.864386');
INSERT INTO `django_migrations` VALUES (28,'django_q','0014_schedule_cluster','2026-11-24 04:46:56.880623');
INSERT INTO `django_migrations` VALUES (29,'django_q','0015_alter_schedule_schedule_type','2026-11-24 04:46:56.896316');
INSERT INTO `django_migrations` VALUES (30,'django_q','0016_schedule_intended_date_kwarg','2026-11-24 04:46:56.907591');
INSERT INTO `django_migrations` VALUES (31,'django_q','0017_task_cluster_alter','2026-11-24 04:46:56.924679');
INSERT INTO `django_migrations` VALUES (32,'django_q','0018_task_success_index','2026-11-24 04:46:56.938853');
INSERT INTO `django_migrations` VALUES (33,'django_q','0019_alter_task_options_alter_ormq_key_alter_ormq_lock_and_more','2026-11-24 04:46:56.990673');
/*!40000 ALTER TABLE `django_migrations` ENABLE KEYS */;
UNLOCK TABLES;
DROP TABLE IF EXISTS `django_q_ormq`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `django_q_ormq` (
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `key` varchar(100) NOT NULL,
  `payload` longtext NOT NULL,
  `lock` datetime(6) DEFAULT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=4 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `django_q_ormq` WRITE;
/*!40000 ALTER TABLE `django_q_ormq` DISABLE KEYS */;
INSERT INTO `django_q_ormq` VALUES (1,'other','gAWVyQAAAAAAAAB9lCiMAmlklIwgMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwNjSUjARuYW1llIwJd2FpdGluZy0wlIwEZnVuY5SMCW1hdGguc3FydJSMBGFyZ3OUSwCFlIwGa3dhcmdzlH2UjAdzdGFydGVklIwIZGF0ZXRpbWWUjAhkYXRldGltZZSTlEMKB-gDAQwAAAAAAJRoDIwIdGltZXpvbmWUk5RoDIwJdGltZWRlbHRhlJOUSwBLAEsAh5RSlIWUUpSGlFKUdS4:1xViQj:KNX7DAspHmkeFWP-AapUlStrYMQ7VDUJkyDegtvKGcc','2024-03-01 12:00:00.000000');
INSERT INTO `django_q_ormq` VALUES (2,'default','gAWVyQAAAAAAAAB9lCiMAmlklIwgMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwNjWUjARuYW1llIwJd2FpdGluZy0xlIwEZnVuY5SMCW1hdGguc3FydJSMBGFyZ3OUSwGFlIwGa3dhcmdzlH2UjAdzdGFydGVklIwIZGF0ZXRpbWWUjAhkYXRldGltZZSTlEMKB-gDAQwAAAAAAJRoDIwIdGltZXpvbmWUk5RoDIwJdGltZWRlbHRhlJOUSwBLAEsAh5RSlIWUUpSGlFKUdS4:1xViQj:7WbTzQxSIkV5IKacjq0S0x8MiT7fH9spJ1H5-b24T-I','2024-03-01 12:00:00.000000');
INSERT INTO `django_q_ormq` VALUES (3,'default','gAWVyQAAAAAAAAB9lCiMAmlklIwgMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwNjaUjARuYW1llIwJd2FpdGluZy0ylIwEZnVuY5SMCW1hdGguc3FydJSMBGFyZ3OUSwKFlIwGa3dhcmdzlH2UjAdzdGFydGVklIwIZGF0ZXRpbWWUjAhkYXRldGltZZSTlEMKB-gDAQwAAAAAAJRoDIwIdGltZXpvbmWUk5RoDIwJdGltZWRlbHRhlJOUSwBLAEsAh5RSlIWUUpSGlFKUdS4:1xViQj:XARw4XDkp5adi9SmRWPw05dUgxSDQG0teKnzGgpsU_E','2024-03-01 12:00:00.000000');
/*!40000 ALTER TABLE `django_q_ormq` ENABLE KEYS */;
UNLOCK TABLES;
DROP TABLE IF EXISTS `django_q_schedule`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `django_q_schedule` (
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `func` varchar(256) NOT NULL,
  `hook` varchar(256) DEFAULT NULL,
  `args` longtext DEFAULT NULL,
  `kwargs` longtext DEFAULT NULL,
  `schedule_type` varchar(2) NOT NULL,
  `repeats` int(11) NOT NULL,
  `next_run` datetime(6) DEFAULT NULL,
  `task` varchar(100) DEFAULT NULL,
  `name` varchar(100) DEFAULT NULL,
  `minutes` smallint(5) unsigned DEFAULT NULL CHECK (`minutes` >= 0),
  `cron` varchar(100) DEFAULT NULL,
  `cluster` varchar(100) DEFAULT NULL,
  `intended_date_kwarg` varchar(100) DEFAULT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=3 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `django_q_schedule` WRITE;
/*!40000 ALTER TABLE `django_q_schedule` DISABLE KEYS */;
INSERT INTO `django_q_schedule` VALUES (1,'math.hypot',NULL,'3, 4',NULL,'D',-7,'2024-03-01 12:00:00.000000','00000000000000000000000000000004','nightly',NULL,NULL,NULL,NULL);
INSERT INTO `django_q_schedule` VALUES (2,'builtins.dict',NULL,NULL,'word=\'django\', n=2','C',-1,'2026-11-24 04:46:57.038456',NULL,NULL,NULL,'0 4 * * 1',NULL,NULL);
/*!40000 ALTER TABLE `django_q_schedule` ENABLE KEYS */;
UNLOCK TABLES;
DROP TABLE IF EXISTS `django_q_task`;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `django_q_task` (
  `name` varchar(100) NOT NULL,
  `func` varchar(256) NOT NULL,
  `hook` varchar(256) DEFAULT NULL,
  `args` longtext DEFAULT NULL,
  `kwargs` longtext DEFAULT NULL,
  `result` longtext DEFAULT NULL,
  `started` datetime(6) NOT NULL,
  `stopped` datetime(6) NOT NULL,
  `success` tinyint(1) NOT NULL,
  `id` varchar(32) NOT NULL,
  `group` varchar(100) DEFAULT NULL,
  `attempt_count` int(11) NOT NULL,
  `cluster` varchar(100) DEFAULT NULL,
  PRIMARY KEY (`id`),
  KEY `success_index` (`group`,`name`,`func`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;

LOCK TABLES `django_q_task` WRITE;
/*!40000 ALTER TABLE `django_q_task` DISABLE KEYS */;
INSERT INTO `django_q_task` VALUES ('name-0','math.copysign',NULL,'gAWVBwAAAAAAAABLAksAhpQu','gAWVFAAAAAAAAAB9lIwEd29yZJSMBmRqYW5nb5RzLg==','gAWVBgAAAAAAAABdlEsAYS4=','2024-03-01 12:00:00.000000','2024-03-01 12:00:00.000000',1,'00000000000000000000000000000000','five',1,'default');
INSERT INTO `django_q_task` VALUES ('name-1','math.copysign',NULL,'gAWVCgAAAAAAAABLAkr/////hpQu','gAWVFAAAAAAAAAB9lIwEd29yZJSMBmRqYW5nb5RzLg==','gAWVBgAAAAAAAABdlEsBYS4=','2024-03-01 12:00:00.000000','2024-03-01 12:00:01.000000',1,'00000000000000000000000000000001','five',1,'default');
INSERT INTO `django_q_task` VALUES ('name-2','math.copysign',NULL,'gAWVCgAAAAAAAABLAkr+////hpQu','gAWVFAAAAAAAAAB9lIwEd29yZJSMBmRqYW5nb5RzLg==','gAWVBgAAAAAAAABdlEsCYS4=','2024-03-01 12:00:00.000000','2024-03-01 12:00:02.000000',1,'00000000000000000000000000000002','five',1,'default');
INSERT INTO `django_q_task` VALUES ('name-3','math.copysign',NULL,'gAWVCgAAAAAAAABLAkr9////hpQu','gAWVFAAAAAAAAAB9lIwEd29yZJSMBmRqYW5nb5RzLg==','gAWVFQAAAAAAAACMEVZhbHVlRXJyb3I6IHRocmVllC4=','2024-03-01 12:00:00.000000','2024-03-01 12:00:03.000000',0,'00000000000000000000000000000003','five',1,'default');
INSERT INTO `django_q_task` VALUES ('name-4','math.copysign',NULL,'gAWVCgAAAAAAAABLAkr8////hpQu','gAWVFAAAAAAAAAB9lIwEd29yZJSMBmRqYW5nb5RzLg==','gAWVBgAAAAAAAABdlEsEYS4=','2024-03-01 12:00:00.000000','2024-03-01 12:00:04.000000',1,'00000000000000000000000000000004','five',1,'default');
/*!40000 ALTER TABLE `django_q_task` ENABLE KEYS */;
UNLOCK TABLES;
/*!40103 SET TIME_ZONE=@OLD_TIME_ZONE */;

/*!40101 SET SQL_MODE=@OLD_SQL_MODE */;
/*!40014 SET FOREIGN_KEY_CHECKS=@OLD_FOREIGN_KEY_CHECKS */;
/*!40014 SET UNIQUE_CHECKS=@OLD_UNIQUE_CHECKS */;
/*!40101 SET CHARACTER_SET_CLIENT=@OLD_CHARACTER_SET_CLIENT */;
/*!40101 SET CHARACTER_SET_RESULTS=@OLD_CHARACTER_SET_RESULTS */;
/*!40101 SET COLLATION_CONNECTION=@OLD_COLLATION_CONNECTION */;
/*!40111 SET SQL_NOTES=@OLD_SQL_NOTES */;

